"""Resources: what can have a limit of its own, named by kind and name.

Each protocol brings its own kinds. The kinds of *scopes* are common: they limit who asks, whatever is asked for.
"""

from typing import Final, NamedTuple

CLIENT: Final = "client"
PRODUCER_GROUP: Final = "producer_group"
CERTIFICATE: Final = "certificate"
USER: Final = "user"
VHOST: Final = "vhost"
LISTENER: Final = "listener"
SCOPES: Final = (CLIENT, PRODUCER_GROUP, CERTIFICATE, USER, VHOST, LISTENER)
"""The kinds of scopes, in the order in which they are asked: client address, producer group, name in the TLS
certificate, user, virtual host, and the scope of a listener.
"""

TOTAL: Final = "total"
"""The kind of what a shared rule limits: all that it matches together. The name is that of the rule, without this."""


class Resource(NamedTuple):
    """A limited thing, such as ``Resource("topic", "orders")``. Kinds are the same words everywhere."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return ``kind:name``, the spelling of limits on the command line."""
        return f"{self.kind}:{self.name}"
