"""What decides: token buckets, breakers, rules and the registry of live limiters.

No sockets, no files, no protocols, no clock: every call that depends on time takes ``now_ns``,
monotonic nanoseconds, as an argument.
"""
