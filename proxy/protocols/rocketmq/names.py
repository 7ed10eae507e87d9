"""The names that one client has asked for, as resources: each is made once, and remembered for people to see.

What becomes of requests for them is not known here.
"""

from typing import Final

from limiter.rules.resource import Resource
from proxy.protocols.rocketmq.wire import codes
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN

#: Names whose resources are remembered per connection and kind.
MAX_NAMES: Final = 1024


class Names:
    """The names of one connection.

    Attributes:
        known: the resources by kind and name. Equal names share one tuple, which makes grouping cheap.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[str, dict[str, tuple[Resource, ...]]] = {
            codes.KIND_TOPIC: {},
            codes.KIND_RETRY_GROUP: {},
            codes.KIND_SUBSCRIPTION: {},
            codes.KIND_TRANSACTION: {},
        }

    def remember(self, kind: str, name: str) -> tuple[Resource, ...]:
        """Make the resources of a name that is not known; beyond MAX_NAMES all others of its kind are forgotten."""
        known = self.known[kind]
        if len(known) >= MAX_NAMES:
            known.clear()
        resources = known[name] = (Resource(kind, name),)
        return resources

    def shown(self) -> tuple[tuple[str, ...], int]:
        """Return the first MAX_RESOURCES_SHOWN as ``kind:name``, and how many others are remembered."""
        total = sum(map(len, self.known.values()))
        first: list[str] = []
        for kind, names in self.known.items():
            for name in names:
                if len(first) == MAX_RESOURCES_SHOWN:
                    return tuple(first), total - len(first)
                first.append(f"{kind}:{name}")
        return tuple(first), 0
