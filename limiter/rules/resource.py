"""Resources: anything that can have a limit, identified by kind and name.

Each kind belongs to a protocol, except *scopes*, which limit the sender with any protocol and destination.
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
"""The kind of totals. A total is named like its shared rule, without this prefix."""

OVERFLOW_NAME: Final = "_overflow"
"""The displayed name of overflow limiters."""


class Resource(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
