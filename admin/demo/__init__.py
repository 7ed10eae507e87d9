"""Clients that show what Sluice does, before an embedded broker (``sluice demo``) or before a real RocketMQ.

Not for production.
"""
