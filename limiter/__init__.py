"""Rate limiting: token buckets, breakers, rules, and the registry of live limiters.

This package does no I/O and has no clock. Functions that depend on time take ``now_ns``, in monotonic nanoseconds.
"""
