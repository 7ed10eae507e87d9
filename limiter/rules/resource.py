"""Resources: things that can have a limit, identified by kind and name.

Kinds belong to a protocol. *Scopes* are common to all protocols: they limit the sender, whatever the destination.
"""

from typing import Final, NamedTuple

CLIENT: Final = "client"
PRODUCER_GROUP: Final = "producer_group"
CERTIFICATE: Final = "certificate"
USER: Final = "user"
VHOST: Final = "vhost"
LISTENER: Final = "listener"
SCOPES: Final = (CLIENT, PRODUCER_GROUP, CERTIFICATE, USER, VHOST, LISTENER)
"""In order of checking."""

TOTAL: Final = "total"
"""The kind of totals. Their names are those of shared rules without this prefix."""

OVERFLOW_NAME: Final = "_overflow"
"""The name under which overflow limiters appear, one for each rule."""


class Resource(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
