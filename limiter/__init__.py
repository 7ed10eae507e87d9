"""Rate limiting: token buckets, breakers, rules, and the registry of live limiters.

No sockets, files, protocols or clock. Time-dependent calls take ``now_ns``, monotonic nanoseconds.
"""
