"""Rate limiting: token buckets, breakers, rules, and the registry of live limiters.

No I/O, protocols or clock. Time-dependent calls take ``now_ns``, in monotonic nanoseconds.
"""
