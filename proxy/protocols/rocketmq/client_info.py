"""Collects a client's identity from its headers and heartbeats, and the names in its requests."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice
from typing import Final

import msgspec

from limiter.rules.resource import Resource
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import MAX_NAME_CHARS, RemoteProtocolError
from proxy.protocols.rocketmq.wire.command import MAX_DECODED_HEADER_BYTES, RemotingCommand, decode_header, encode
from proxy.protocols.rocketmq.wire.frame import UNPARSED, Header
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN, ClientDescription

# The enum ``MQVersion.Version`` (``org.apache.rocketmq.common``, 5.5.0). Clients send the ordinal of their version.
_FIRST: Final = (
    *("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1", "V3_0_0_BETA1", "V3_0_0_BETA2", "V3_0_0_BETA3", "V3_0_0_BETA4"),
    *("V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_BETA6", "V3_0_0_BETA7_SNAPSHOT", "V3_0_0_BETA7"),
    *("V3_0_0_BETA8_SNAPSHOT", "V3_0_0_BETA8", "V3_0_0_BETA9_SNAPSHOT", "V3_0_0_BETA9", "V3_0_0_FINAL"),
)
# Each series: first ordinal, major, minor, first patch, number of patches. Each release follows its snapshot.
_SERIES: Final = (
    (212, 4, 0, 0, 10),
    (86, 3, 3, 1, 9),
    (46, 3, 1, 0, 10),
    (16, 3, 0, 1, 15),
)
_END: Final = 612


def version_name(number: int) -> str:
    if 0 <= number < len(_FIRST):
        return _FIRST[number]
    if 0 <= number < _END:
        for start, major, first_minor, first_patch, patches in _SERIES:
            if number >= start:
                release, final = divmod(number - start, 2)
                minors, patch = divmod(release, patches)
                majors, minor = divmod(first_minor + minors, 10)
                return f"V{major + majors}_{minor}_{first_patch + patch}{'' if final else '_SNAPSHOT'}"
    return str(number)


# Longer heartbeats are ignored. A subscription takes about 200 bytes.
MAX_HEARTBEAT_BYTES: Final = 64 * 1024


class _Group(msgspec.Struct, gc=False):
    groupName: str = ""  # noqa: N815 - the wire's name


class _Heartbeat(msgspec.Struct, gc=False):
    clientID: str = ""  # noqa: N815 - the wire's name
    producerDataSet: list[_Group] | None = None  # noqa: N815 - the wire's name
    consumerDataSet: list[_Group] | None = None  # noqa: N815 - the wire's name


_decode_heartbeat = msgspec.json.Decoder(_Heartbeat).decode
_GROUP_FIELDS: Final = ("producerGroup", "consumerGroup")
# Maximum per connection.
MAX_GROUPS: Final = 256


class ClientInfo:
    def __init__(self) -> None:
        self.listening = False  # whether to pass the rest of a heartbeat to ``receive``
        self.language = ""
        self._version: int | None = None
        self._id = ""
        self._body = bytearray()
        # Keyed by client id, field in _GROUP_FIELDS, and group.
        self._groups: dict[tuple[str, str, str], None] = {}

    def describe(self) -> ClientDescription:
        if self._version is None:
            return ClientDescription(self._id)
        return ClientDescription(self._id, self.language, version_name(self._version))

    def identify(self, header: Header) -> None:
        if self._version is None and header.reading != UNPARSED:
            self.language, self._version = header.language[:MAX_NAME_CHARS], header.version

    def heartbeat(self, size_bytes: int, piece: memoryview) -> None:
        if 0 < size_bytes <= MAX_HEARTBEAT_BYTES:
            self._body = bytearray()
            self.listening = True
            self.receive(piece, more=len(piece) < size_bytes)

    def receive(self, piece: memoryview, *, more: bool) -> None:
        self._body += piece
        if more:
            return
        body, self._body = self._body, bytearray()
        self.listening = False
        heard = _Heartbeat()
        with suppress(msgspec.DecodeError, ValueError, RecursionError):
            heard = _decode_heartbeat(body)
        for field, groups in zip(_GROUP_FIELDS, (heard.producerDataSet, heard.consumerDataSet), strict=True):
            for group in groups or ():
                if len(self._groups) < MAX_GROUPS and len(heard.clientID + group.groupName) <= 2 * MAX_NAME_CHARS:
                    self._groups[heard.clientID, field, group.groupName] = None
        self._id = self._id or heard.clientID[:MAX_NAME_CHARS]

    def sign_off(self, header: bytes, header_type: int) -> None:
        name = ""
        if len(header) <= MAX_DECODED_HEADER_BYTES:
            with suppress(RemoteProtocolError):
                fields = decode_header(header, header_type).fields
                name = fields.get("clientID", "")
                for field in _GROUP_FIELDS:
                    self._groups.pop((name, field, fields.get(field, "")), None)
        self._id = self._id or name[:MAX_NAME_CHARS]

    def unregister(self) -> list[bytes]:
        """Return oneway requests that remove the client from its groups."""
        groups, self._groups = self._groups, {}
        return [
            encode(
                RemotingCommand(
                    code=codes.RequestCode.UNREGISTER_CLIENT.value,
                    opaque=0,
                    flag=codes.FLAG_ONEWAY,
                    version=self._version or 0,
                    fields={"clientID": name, field: group},
                )
            )
            for name, field, group in groups
        ]


# Maximum per connection and kind.
MAX_NAMES: Final = 1024


class Names:
    def __init__(self) -> None:
        # Requests for a name share one tuple, which makes it cheap to group them.
        self.known: dict[str, dict[str, tuple[Resource, ...]]] = defaultdict(dict)

    def remember(self, kind: str, name: str) -> tuple[Resource, ...]:
        known = self.known[kind]
        if len(known) >= MAX_NAMES:
            known.clear()
        resources = known[name] = (Resource(kind, name),)
        return resources

    def shown(self, scanned: Iterable[Resource] = ()) -> tuple[tuple[str, ...], int]:

        resources = dict.fromkeys(chain((each for names in self.known.values() for (each,) in names.values()), scanned))
        first = tuple(map(str, islice(resources, MAX_RESOURCES_SHOWN)))
        return first, len(resources) - len(first)
