"""Resources: the things that have a limit of their own.

A resource is named by its kind and its name. Kinds are plain strings, because protocols bring their
own: RocketMQ has ``topic`` and ``retry_group``; AMQP will bring ``queue``, ``exchange`` and ``address``.
"""

from typing import NamedTuple


class Resource(NamedTuple):
    """One limited thing, e.g. ``Resource("topic", "orders")``.

    Attributes:
        kind: what sort of thing it is; the same word in rules, metrics and the API.
        name: its bare name, as an operator writes it (a retry group without ``%RETRY%``).
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """Return ``kind:name``, the spelling of limits on the command line."""
        return f"{self.kind}:{self.name}"
