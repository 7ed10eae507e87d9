"""A follower in a process of its own, for tests that kill it: ``python -m follower LOGS OUT [--once]``.

As ``sluice report --follow``, but with small batches, without a page, and with a tight trigger.
"""
