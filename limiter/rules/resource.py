"""A resource is a destination or a sender that can have a limit. It is identified by its kind and name.

Each kind belongs to a protocol, except *scopes*, which limit a sender regardless of the protocol and the destination.
"""

from typing import Final, NamedTuple

CLIENT: Final = "client"
PRODUCER_GROUP: Final = "producer_group"
CERTIFICATE: Final = "certificate"
USER: Final = "user"
VHOST: Final = "vhost"
LISTENER: Final = "listener"
SCOPES: Final = (CLIENT, PRODUCER_GROUP, CERTIFICATE, USER, VHOST, LISTENER)
"""The kinds of scopes, in the order in which they are checked."""

TOTAL: Final = "total"
"""The kind of totals. A total's name is that of its shared rule, without the prefix ``total:``."""

OVERFLOW_NAME: Final = "_overflow"


class Resource(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
