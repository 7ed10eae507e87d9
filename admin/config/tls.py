"""TLS contexts from configured files, which can be read again while connections go on.

For the admin address, and for listeners on both sides. TLS 1.2 and 1.3 only, without renegotiation and compression.
"""

import grp
import hashlib
import os
import pwd
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple

from admin.common.errors import SettingsError
from admin.config.faults import Origins, keys
from admin.config.settings import ListenerSettings
from admin.config.toml_lines import Path as Place
from proxy.net.tls import BrokerTls, ClientTls

Side = Literal["client", "broker", "admin"]
SOON: Final = timedelta(days=14)
"""How long before its end a certificate is warned of. The alert in ``deploy/prometheus`` has the same time."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_ENDS_TLS: Final = ("accept", "require")
_CLIENT_KEYS: Final = tuple(key for key in keys(ListenerSettings) if key.startswith("tls_"))
_BROKER_KEYS: Final = tuple(key for key in keys(ListenerSettings) if key.startswith("broker_tls_"))
#: Keys that name files of certificates, with what a reload calls them and the side that is shown them.
_CERTIFICATES: Final[dict[str, tuple[str, Side | None]]] = {
    "tls_certificate_file": ("", "client"),
    "tls_client_ca_file": ("authorities of clients' certificates", None),
    "broker_tls_certificate_file": (" for its broker", "broker"),
    "broker_tls_ca_file": ("authorities of the broker's certificate", None),
}
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
#: Tags of DER (RFC 5280, 4.1).
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_VERSION: Final = 0xA0


class NamedFile(NamedTuple):
    """A file, and the place of the key that names it."""

    place: Place
    path: str


class Reading(NamedTuple):
    """The result of reading a listener's files again.

    Attributes:
        changed: the files that changed, a line each.
        put_in_force: uses them for new connections.
    """

    changed: tuple[str, ...]
    put_in_force: Callable[[], None]


class Expiry(NamedTuple):
    """When a certificate expires.

    Attributes:
        listener: its listener; empty for the admin address.
        side: who is shown it.
        file: its file.
        ends: the end of the file's certificate that expires first.
    """

    listener: str
    side: Side
    file: str
    ends: datetime


def new_context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    """Return a context with the settings that all have."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def load_certificate(context: ssl.SSLContext, certificate: NamedFile, key: NamedFile, origins: Origins) -> None:
    """Load a certificate into a context.

    Args:
        context: to load it into.
        certificate: PEM, with the chain behind the certificate.
        key: PEM, not encrypted.
        origins: where each value came from.

    Raises:
        SettingsError: the two are not a certificate and its key.
    """

    def problem(of: NamedFile, what: str) -> SettingsError:
        return SettingsError(origins.problem(of.place, what, of.path))

    for each in (certificate, key):
        _must_be_readable(each, origins)
    try:
        context.load_cert_chain(certificate.path, key.path, _no_password)
    except _EncryptedError:
        what = "is encrypted; decrypt it: openssl pkey -in OLD -out NEW, and chmod 600 NEW"
        raise problem(key, what) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"is not the key of {certificate.path}; name the key that goes with it"
            raise problem(key, what) from None
        if _holds(certificate.path, b"CERTIFICATE"):
            raise problem(key, "has no readable key; name a PEM file with a private key") from None
        raise problem(certificate, "has no certificate; name a PEM file with a certificate") from None


def expiry(listener: str, side: Side, file: str) -> tuple[Expiry, ...]:
    """Return when the certificates of a PEM file expire, or nothing if it cannot be read."""
    try:
        text = Path(file).read_text("ascii", errors="replace")
        ends = [_not_after(ssl.PEM_cert_to_DER_cert(_BEGIN + each.partition(_END)[0] + _END)) for each in _after(text)]
    except (OSError, ValueError, IndexError):
        return ()
    return (Expiry(listener, side, file, min(ends)),) if ends else ()


def digest(file: str) -> bytes:
    """Return a hash of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except (OSError, ValueError):
        return b""


def renewed(whose: str, expiries: Iterable[Expiry]) -> str:
    """Say that a certificate was replaced.

    Args:
        whose: its owner.
        expiries: of the new certificate.
    """
    return f"certificate of {whose}" + "".join(f", valid until {each.ends:%Y-%m-%d}" for each in expiries)


def expiry_warnings(expiries: Iterable[Expiry], now: datetime) -> Iterator[str]:
    """Yield a warning for each certificate that has expired or soon will."""
    for each in expiries:
        if each.ends < now + SOON:
            whose = f"listener {each.listener}" if each.listener else "the admin address"
            ends = "has ended at" if each.ends <= now else "ends at"
            yield f"{whose}: the certificate in {each.file} {ends} {each.ends:%Y-%m-%d %H:%M} UTC; renew it and reload"


class ListenerTls:
    """TLS of one listener, with its clients and with its broker.

    Args:
        settings: the listener's.
        place: of the listener in the configuration.
        origins: where each value came from.

    Attributes:
        clients: TLS with clients, or None.
        broker: TLS with the broker, or None.
        expiries: of Sluice's own certificates.
        digests: hashes of the certificate files, by key.

    Raises:
        SettingsError: keys are missing or contradict each other, or a file is wrong.
    """

    def __init__(self, settings: ListenerSettings, place: Place, origins: Origins) -> None:
        self._settings = settings
        self._place = place
        self._origins = origins
        faults = [*self._faults()]
        if faults:
            raise SettingsError(faults)
        self.clients: ClientTls | None = None
        self.broker: BrokerTls | None = None
        # Before the files are read, so that the next reload notices a change in between.
        self.digests = self._digested()
        if settings.tls in _ENDS_TLS:
            self.clients = ClientTls(self._client_context(), required=settings.tls == "require")
        if settings.broker_tls:
            self.broker = BrokerTls(self._broker_context(), settings.broker_tls_server_name or "")
        self.expiries = self._expiries()

    def read(self) -> Reading:
        """Read all files again.

        Raises:
            SettingsError: a file is wrong; the old ones stay in use.
        """
        read = ListenerTls(self._settings, self._place, self._origins)

        def put_in_force() -> None:
            if self.clients is not None and read.clients is not None:
                self.clients.context = read.clients.context
            if self.broker is not None and read.broker is not None:
                self.broker.context = read.broker.context
            self.expiries, self.digests = read.expiries, read.digests

        return Reading(tuple(self._changed(read.digests, read.expiries)), put_in_force)

    @property
    def files(self) -> tuple[str, ...]:
        """All its files."""
        settings = self._settings
        named = (
            *(settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file),
            *(settings.broker_tls_ca_file, settings.broker_tls_certificate_file, settings.broker_tls_key_file),
        )
        return tuple(file for file in named if file is not None)

    def _digested(self) -> dict[str, bytes]:
        named = ((key, getattr(self._settings, key)) for key in _CERTIFICATES)
        return {key: digest(file) for key, file in named if file is not None}

    def _changed(self, digests: Mapping[str, bytes], expiries: Iterable[Expiry]) -> Iterator[str]:
        whose = f"listener {self._settings.label}"
        for key, (what, side) in _CERTIFICATES.items():
            if digests.get(key) == self.digests.get(key):
                continue
            if side is None:
                yield f"{what} of {whose}"
            else:
                yield renewed(whose + what, (each for each in expiries if each.side == side))

    def _expiries(self) -> tuple[Expiry, ...]:
        sides: tuple[tuple[Side, str | None], ...] = (
            ("client", self._settings.tls_certificate_file),
            ("broker", self._settings.broker_tls_certificate_file),
        )
        label = self._settings.label
        return tuple(each for side, file in sides if file is not None for each in expiry(label, side, file))

    def _faults(self) -> Iterator[str]:
        """Yield missing keys, and keys without effect, because their author relies on them."""
        settings = self._settings
        if settings.tls in _ENDS_TLS:
            if missing := [key for key in ("tls_certificate_file", "tls_key_file") if getattr(settings, key) is None]:
                yield self._fault("tls", f"needs {' and '.join(missing)}")
            if "tls" in settings.options:
                yield self._fault("tls", "contradicts options.tls, which is for TLS that does not end here; remove one")
            if settings.tls_client_ca_file is None and settings.tls_client_certificate is not None:
                yield self._fault("tls_client_certificate", "needs tls_client_ca_file")
        else:
            for key in _CLIENT_KEYS:
                if getattr(settings, key) != keys(ListenerSettings)[key].default:
                    yield self._fault(key, 'has no effect without tls = "accept" or "require"')
        if settings.broker_tls:
            if "pass" in {settings.tls, settings.options.get("tls")}:
                yield self._fault("broker_tls", 'contradicts tls = "pass", which would be encrypted twice')
            if (settings.broker_tls_certificate_file is None) != (settings.broker_tls_key_file is None):
                given, other = "certificate", "key"
                if settings.broker_tls_certificate_file is None:
                    given, other = other, given
                yield self._fault(f"broker_tls_{given}_file", f"goes with broker_tls_{other}_file; give both")
            if settings.broker_tls_verify is False and settings.broker_tls_ca_file is not None:
                yield self._fault("broker_tls_verify", "contradicts broker_tls_ca_file; remove one")
        else:
            for key in _BROKER_KEYS:
                if getattr(settings, key) != keys(ListenerSettings)[key].default:
                    yield self._fault(key, "has no effect without broker_tls = true")

    def _fault(self, key: str, what: str) -> str:
        return self._origins.problem((*self._place, key), what, getattr(self._settings, key))

    def _named(self, key: str) -> NamedFile:
        return NamedFile((*self._place, key), getattr(self._settings, key))

    def _client_context(self) -> ssl.SSLContext:
        settings = self._settings
        context = new_context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[settings.tls_minimum_version]
        # A client that never reads would leave tickets unread, and its close would become a reset. A resumed session
        # also shows no certificate. Python cannot turn resumption of TLS 1.2 off; a reload ends it.
        context.num_tickets = 0
        if settings.tls_ciphers is not None:
            try:
                context.set_ciphers(settings.tls_ciphers)
            except ssl.SSLError:
                what = "names no known cipher; write them as for `openssl ciphers`"
                raise SettingsError(self._fault("tls_ciphers", what)) from None
        load_certificate(context, self._named("tls_certificate_file"), self._named("tls_key_file"), self._origins)
        if settings.tls_client_ca_file is not None:
            self._load_authorities(context, "tls_client_ca_file")
            required = settings.tls_client_certificate != "accept"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def _broker_context(self) -> ssl.SSLContext:
        settings = self._settings
        context = new_context(ssl.PROTOCOL_TLS_CLIENT)
        if settings.broker_tls_verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif settings.broker_tls_ca_file is None:
            context.load_default_certs()
        else:
            self._load_authorities(context, "broker_tls_ca_file")
        if settings.broker_tls_certificate_file is not None:
            certificate, key = self._named("broker_tls_certificate_file"), self._named("broker_tls_key_file")
            load_certificate(context, certificate, key, self._origins)
        return context

    def _load_authorities(self, context: ssl.SSLContext, key: str) -> None:
        named = self._named(key)
        _must_be_readable(named, self._origins)
        try:
            context.load_verify_locations(cafile=named.path)
        except ssl.SSLError:
            what = "has no certificate; name a PEM file with CA certificates"
            raise SettingsError(self._fault(key, what)) from None


class _EncryptedError(Exception):
    """The key needs a password."""


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise _EncryptedError


def _must_be_readable(named: NamedFile, origins: Origins) -> None:
    try:
        with open(named.path, "rb"):  # noqa: PTH123 - an invalid path must be an error here, too
            pass
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        what = f"cannot be read: {reason}; " + (
            _may_read(named.path) if isinstance(error, PermissionError) else "name a PEM file"
        )
        raise SettingsError(origins.problem(named.place, what, named.path)) from None


def _may_read(file: str) -> str:
    """Say how this process could be allowed to read a file."""
    user, group = str(os.geteuid()), str(os.getegid())
    # In a container neither may have a name.
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    with suppress(KeyError):
        group = grp.getgrgid(os.getegid()).gr_name
    return f"allow user {user} to read it: chgrp {group} {file} && chmod 640 {file}, and the same for its folder"


def _holds(file: str, what: bytes) -> bool:
    with open(file, "rb") as opened:  # noqa: PTH123 - as above
        return b"-----BEGIN " in (content := opened.read()) and what in content


def _after(text: str) -> list[str]:
    return text.split(_BEGIN)[1:]


def _not_after(certificate: bytes) -> datetime:
    """Return the end of a certificate in DER (RFC 5280, 4.1).

    Raises:
        ValueError, IndexError: it does not have that structure.
    """
    _, start, _ = _element(certificate, 0)
    _, start, _ = _element(certificate, start)
    tag, _, end = _element(certificate, start)
    # Serial number, algorithm, issuer; a version may come before them.
    for _ in range(3 if tag == _VERSION else 2):
        _, _, end = _element(certificate, end)
    _, start, _ = _element(certificate, end)
    _, _, end = _element(certificate, start)
    tag, start, end = _element(certificate, end)
    if tag not in {_UTC_TIME, _GENERALIZED_TIME}:
        raise ValueError(f"tag {tag:#x} is not a time")
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280, 4.1.2.5.1.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of a DER element, and where its content begins and ends."""
    length, start = der[at + 1], at + 2
    if length >= 0x80:
        start += length - 0x80
        length = int.from_bytes(der[at + 2 : start])
    return der[at], start, start + length
