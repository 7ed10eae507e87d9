"""Resources: the things that have a limit of their own.

A resource is named by its kind and its name. Kinds are plain strings, because each protocol brings its own. The kinds
of *scopes* are the same words for every protocol that knows them: who asks is limited, whatever is asked for.
"""

from typing import Final, NamedTuple

CLIENT: Final = "client"
PRODUCER_GROUP: Final = "producer_group"
CERTIFICATE: Final = "certificate"
USER: Final = "user"
VHOST: Final = "vhost"
LISTENER: Final = "listener"
SCOPES: Final = (CLIENT, PRODUCER_GROUP, CERTIFICATE, USER, VHOST, LISTENER)
"""The kinds of scopes, in the order in which they are asked: a client's address, the group it sends for, the name in
its TLS certificate, the user it has logged in as, the virtual host it works in, and all that comes through a listener's
scope."""

TOTAL: Final = "total"
"""The kind of what a shared rule limits: all that it matches together. The name is that of the rule, without this."""


class Resource(NamedTuple):
    """One limited thing, e.g. ``Resource("topic", "orders")``.

    Attributes:
        kind: what sort of thing it is; the same word in rules, metrics and the API.
        name: its bare name, as an operator writes it.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """Return ``kind:name``, the spelling of limits on the command line."""
        return f"{self.kind}:{self.name}"
