"""Rate limiting: token buckets, breakers, rules, and the registry of live limiters.

It does no I/O and never reads a clock. Functions that depend on time take ``now_ns``, in monotonic nanoseconds.
"""
