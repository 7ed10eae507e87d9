"""The name, library and user that a client reports about itself."""

from collections.abc import Mapping
from typing import Final

from limiter.rules.resource import USER, VHOST, Resource
from proxy.protocols.amqp.names import DEFAULT_VHOST, MAX_NAME_BYTES, encoded
from proxy.stats.snapshot import ClientDescription

_MAX_CHARS: Final = 64


class Identity:
    def __init__(self, vhost: bytes) -> None:
        self.user = b""  # empty if the SASL mechanism does not reveal it
        self.vhost = vhost
        self._library = self._version = self._name = ""
        self.language = ""  # without its version
        self.product = ""  # library and version, such as ``amqplib 2.3.1``

    def introduce(self, name: bytes, said: Mapping[bytes, bytes]) -> None:
        self._name = shown(name)
        self._library, self._version = shown(said.get(b"product", b"")), shown(said.get(b"version", b""))
        self.product = f"{self._library} {self._version}".strip()
        self.language = shown(said.get(b"platform", b"")).partition(" ")[0]

    def scopes(self) -> tuple[Resource, ...]:
        vhost = Resource(VHOST, "/" if self.vhost == DEFAULT_VHOST else encoded(self.vhost[:MAX_NAME_BYTES]))
        return (Resource(USER, encoded(self.user[:MAX_NAME_BYTES])), vhost) if self.user else (vhost,)

    def describe(self) -> ClientDescription:
        return ClientDescription(self._name, self.language, self._version, self._library, shown(self.user))


def shown(said: bytes) -> str:
    text = said[: 4 * _MAX_CHARS + 1].decode(errors="replace")
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"
