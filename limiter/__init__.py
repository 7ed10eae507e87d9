"""Decisions: token buckets, breakers, rules and the registry of live limiters.

No sockets, files, protocols or clock: calls that depend on time take ``now_ns``, monotonic nanoseconds.
"""
