"""Makes TLS contexts from certificate files. The files can be reloaded without closing connections."""

import hashlib
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from admin.common.disk import read_file, unreadable
from admin.common.errors import SettingsError
from admin.config.faults import Origins, keys
from admin.config.settings import OFF, AdminSettings, FleetSettings, ListenerSettings
from admin.config.toml_lines import Path as Place
from proxy.net.tls import BrokerTls, ClientTls

Side = Literal["client", "broker", "admin"]
SOON: Final = timedelta(days=14)
"""How long before a certificate expires to warn. The alert in ``deploy/prometheus`` must use the same period."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_ENDS_TLS: Final = ("accept", "require")
_CLIENT_KEYS: Final = tuple(key for key in keys(ListenerSettings) if key.startswith("tls_"))
_BROKER_KEYS: Final = tuple(key for key in keys(ListenerSettings) if key.startswith("broker_tls_"))
_CERTIFICATES: Final[dict[str, tuple[str, Side | None]]] = {
    "tls_certificate_file": ("", "client"),
    "tls_client_ca_file": ("CAs of client certificates", None),
    "broker_tls_certificate_file": (" for its broker", "broker"),
    "broker_tls_ca_file": ("CAs of the broker's certificate", None),
}
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
#: DER tags.
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_VERSION: Final = 0xA0


class NamedFile(NamedTuple):
    place: Place
    path: str


class Reading(NamedTuple):
    """The result of reading the files again.

    ``changed`` has a line for each changed file. ``activate`` makes new connections use the new contents.
    """

    changed: tuple[str, ...]
    activate: Callable[[], None]


class Expiry(NamedTuple):
    """When a certificate expires. ``listener`` is empty for the admin address's certificate."""

    listener: str
    side: Side
    file: str
    ends: datetime


def _new_context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _load_certificate(context: ssl.SSLContext, certificate: NamedFile, key: NamedFile, origins: Origins) -> None:
    for each in (certificate, key):
        _must_be_readable(each, origins)
    wrong = key
    try:
        context.load_cert_chain(certificate.path, key.path, _no_password)
    except _EncryptedError:
        what = "the key is encrypted; decrypt it with `openssl pkey -in OLD -out NEW` and `chmod 600 NEW`"
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"does not match {certificate.path}; give the private key of that certificate"
        elif _BEGIN in read_file(certificate.path).decode("ascii", errors="replace"):
            what = "contains no readable key; give a PEM file with a private key"
        else:
            wrong, what = certificate, "contains no certificate; give a PEM file with a certificate"
    else:
        return
    raise SettingsError(origins.problem(wrong.place, what, wrong.path))


def _load_authorities(context: ssl.SSLContext, named: NamedFile, origins: Origins) -> None:
    _must_be_readable(named, origins)
    try:
        context.load_verify_locations(cafile=named.path)
    except ssl.SSLError:
        what = "contains no certificate; give a PEM file with CA certificates"
        raise SettingsError(origins.problem(named.place, what, named.path)) from None


def fleet_context(settings: FleetSettings, origins: Origins) -> ssl.SSLContext:
    files = {
        key: NamedFile(("fleet", key), file)
        for key in ("ca_file", "certificate_file", "key_file")
        if (file := getattr(settings, key)) is not None
    }
    certificate, key = files.get("certificate_file"), files.get("key_file")
    context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
    if "ca_file" in files:
        _load_authorities(context, files["ca_file"], origins)
    else:
        context.load_default_certs()
    if certificate is not None and key is not None:
        _load_certificate(context, certificate, key, origins)
    elif (alone := certificate or key) is not None:
        what = "certificate_file and key_file must be set together"
        raise SettingsError(origins.problem(alone.place, what, alone.path))
    return context


def expiry(listener: str, side: Side, file: str) -> tuple[Expiry, ...]:
    """Return the earliest expiry among the certificates in a PEM file, or nothing if it cannot be read."""
    try:
        text = read_file(file).decode("ascii", errors="replace")
        ends = [
            _not_after(ssl.PEM_cert_to_DER_cert(_BEGIN + each.partition(_END)[0] + _END))
            for each in text.split(_BEGIN)[1:]
        ]
    except (OSError, ValueError, IndexError):
        return ()
    return (Expiry(listener, side, file, min(ends)),) if ends else ()


def _digest(file: str) -> bytes:
    try:
        return hashlib.sha256(read_file(file)).digest()
    except (OSError, ValueError):
        return b""


def _renewed(whose: str, expiries: Iterable[Expiry]) -> str:
    return f"certificate of {whose}" + "".join(f", valid until {each.ends:%Y-%m-%d}" for each in expiries)


def expiry_warnings(expiries: Iterable[Expiry], now: datetime) -> Iterator[str]:
    for each in expiries:
        if each.ends < now + SOON:
            whose = f"listener {each.listener}" if each.listener else "the admin address"
            ends = "expired at" if each.ends <= now else "expires at"
            yield f"{whose}: the certificate in {each.file} {ends} {each.ends:%Y-%m-%d %H:%M} UTC; renew it and reload"


class ListenerTls:
    """The TLS contexts for a listener's clients and its broker.

    ``alpn`` lists the application protocols to offer (RFC 7301). Raises SettingsError.
    """

    def __init__(self, settings: ListenerSettings, place: Place, origins: Origins, alpn: Sequence[str] = ()) -> None:
        self._settings, self._place, self._origins, self._alpn = settings, place, origins, alpn
        if faults := [*self._faults()]:
            raise SettingsError(faults)
        self.clients: ClientTls | None = None
        self.broker: BrokerTls | None = None
        # Compute the digests first, so that the next reload notices files that change in between.
        named = {key: getattr(settings, key) for key in _CERTIFICATES}
        self.digests = {key: _digest(file) for key, file in named.items() if file is not None}
        if settings.tls in _ENDS_TLS:
            self.clients = ClientTls(self._client_context(), required=settings.tls == "require")
        if settings.broker_tls:
            self.broker = BrokerTls(self._broker_context(), settings.broker_tls_server_name or "")
        self.expiries = self._expiries()

    def read(self) -> Reading:
        """Read all files again. If this raises SettingsError, the old certificates stay in use."""
        read = ListenerTls(self._settings, self._place, self._origins, self._alpn)

        def activate() -> None:
            if self.clients is not None and read.clients is not None:
                self.clients.context = read.clients.context
            if self.broker is not None and read.broker is not None:
                self.broker.context = read.broker.context
            self.expiries, self.digests = read.expiries, read.digests

        return Reading(tuple(self._changed(read.digests, read.expiries)), activate)

    @property
    def files(self) -> tuple[str, ...]:
        keys = (*_CLIENT_KEYS, *_BROKER_KEYS)
        found = (getattr(self._settings, key) for key in keys if key.endswith("_file"))
        return tuple(file for file in found if file is not None)

    def _changed(self, digests: Mapping[str, bytes], expiries: Iterable[Expiry]) -> Iterator[str]:
        whose = f"listener {self._settings.label}"
        for key, (what, side) in _CERTIFICATES.items():
            if digests.get(key) == self.digests.get(key):
                continue
            if side is None:
                yield f"{what} of {whose}"
            else:
                yield _renewed(whose + what, (each for each in expiries if each.side == side))

    def _expiries(self) -> tuple[Expiry, ...]:
        files = [(side, getattr(self._settings, key)) for key, (_, side) in _CERTIFICATES.items() if side is not None]
        label = self._settings.label
        return tuple(each for side, file in files if file is not None for each in expiry(label, side, file))

    def _faults(self) -> Iterator[str]:
        """Yield errors. A key that has no effect is an error too, because the operator may rely on it."""
        settings = self._settings
        if settings.tls in _ENDS_TLS:
            if missing := [key for key in ("tls_certificate_file", "tls_key_file") if getattr(settings, key) is None]:
                yield self._fault("tls", f"requires {' and '.join(missing)}")
            if "tls" in settings.options:
                yield self._fault(
                    "tls", "contradicts options.tls, which applies if TLS is not terminated; remove one of them"
                )
            if settings.tls_client_ca_file is None and settings.tls_client_certificate is not None:
                yield self._fault("tls_client_certificate", "requires tls_client_ca_file")
        else:
            yield from self._without_effect(_CLIENT_KEYS, 'tls = "accept" or "require"')
        if settings.broker_tls:
            if "pass" in {settings.tls, settings.options.get("tls")}:
                yield self._fault(
                    "broker_tls",
                    'contradicts tls = "pass", because traffic would be encrypted twice; remove one of them',
                )
            files = ["broker_tls_certificate_file", "broker_tls_key_file"]
            if len(given := [key for key in files if getattr(settings, key) is not None]) == 1:
                files.remove(given[0])
                yield self._fault(given[0], f"requires {files[0]}; set both")
            if settings.broker_tls_verify is False and settings.broker_tls_ca_file is not None:
                yield self._fault("broker_tls_verify", "contradicts broker_tls_ca_file; remove one of them")
        else:
            yield from self._without_effect(_BROKER_KEYS, "broker_tls = true")

    def _without_effect(self, of: Iterable[str], needed: str) -> Iterator[str]:
        for key in of:
            if getattr(self._settings, key) != keys(ListenerSettings)[key].default:
                yield self._fault(key, f"has no effect without {needed}")

    def _fault(self, key: str, what: str) -> str:
        return self._origins.problem((*self._place, key), what, getattr(self._settings, key))

    def _named(self, key: str) -> NamedFile:
        return NamedFile((*self._place, key), getattr(self._settings, key))

    def _client_context(self) -> ssl.SSLContext:
        settings = self._settings
        context = _new_context(ssl.PROTOCOL_TLS_SERVER)
        self._offer(context)
        context.minimum_version = _VERSIONS[settings.tls_minimum_version]
        # Send no tickets. A client that closes without reading them would reset the connection, and a client that
        # resumes a session sends no certificate. Python cannot disable resumption for TLS 1.2.
        context.num_tickets = 0
        if settings.tls_ciphers is not None:
            try:
                context.set_ciphers(settings.tls_ciphers)
            except ssl.SSLError:
                what = "contains no known cipher; use the format of `openssl ciphers`"
                raise SettingsError(self._fault("tls_ciphers", what)) from None
        _load_certificate(context, self._named("tls_certificate_file"), self._named("tls_key_file"), self._origins)
        if settings.tls_client_ca_file is not None:
            _load_authorities(context, self._named("tls_client_ca_file"), self._origins)
            required = settings.tls_client_certificate != "accept"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def _broker_context(self) -> ssl.SSLContext:
        settings = self._settings
        context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
        self._offer(context)
        if settings.broker_tls_verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif settings.broker_tls_ca_file is None:
            context.load_default_certs()
        else:
            _load_authorities(context, self._named("broker_tls_ca_file"), self._origins)
        if settings.broker_tls_certificate_file is not None:
            certificate, key = self._named("broker_tls_certificate_file"), self._named("broker_tls_key_file")
            _load_certificate(context, certificate, key, self._origins)
        return context

    def _offer(self, context: ssl.SSLContext) -> None:
        if self._alpn:
            context.set_alpn_protocols(self._alpn)


class Certificate:
    def __init__(self, certificate_file: str, key_file: str, origins: Origins) -> None:
        self._certificate = NamedFile(("admin", "tls_certificate_file"), certificate_file)
        self._key = NamedFile(("admin", "tls_key_file"), key_file)
        self._origins = origins
        self.context = _new_context(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(["http/1.1"])
        self._load()

    def changed(self) -> Iterator[str]:
        file = self._certificate.path
        if _digest(file) != self._read:
            yield _renewed("the admin address", expiry("", "admin", file))

    def reload(self) -> None:
        """Read both files again. If this raises SettingsError, the old certificate stays in use."""
        # Try the files in a temporary context. A failure could leave the live context with only one of them.
        _load_certificate(_new_context(ssl.PROTOCOL_TLS_SERVER), self._certificate, self._key, self._origins)
        self._load()

    def _load(self) -> None:
        self._read = _digest(self._certificate.path)
        _load_certificate(self.context, self._certificate, self._key, self._origins)
        self.expiries = expiry("", "admin", self._certificate.path)


def read_certificate(settings: AdminSettings, origins: Origins) -> Certificate | None:
    if settings.listen == OFF:
        return None
    if settings.tls_certificate_file is not None and settings.tls_key_file is not None:
        return Certificate(settings.tls_certificate_file, settings.tls_key_file, origins)
    for given, missing in (("certificate", "key"), ("key", "certificate")):
        if (file := getattr(settings, f"tls_{given}_file")) is not None:
            what = f"requires admin.tls_{missing}_file; set both"
            raise SettingsError(origins.problem(("admin", f"tls_{given}_file"), what, file))
    return None


class _EncryptedError(Exception):
    """Raised if a private key is encrypted."""


def _no_password() -> str:
    # Without this callback, OpenSSL would prompt on the terminal.
    raise _EncryptedError


def _must_be_readable(named: NamedFile, origins: Origins) -> None:
    try:
        read_file(named.path)
    except (OSError, ValueError) as error:
        what = f"{unreadable(named.path, error)}; give a PEM file that this process may read"
        raise SettingsError(origins.problem(named.place, what, named.path)) from None


def _not_after(certificate: bytes) -> datetime:
    """Return when a DER certificate expires (RFC 5280, 4.1). Raises ValueError or IndexError if malformed."""
    _, start, _ = _element(certificate, 0)
    _, start, _ = _element(certificate, start)
    tag, _, end = _element(certificate, start)
    # Skip the version (optional), serial number, algorithm and issuer.
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
    length, start = der[at + 1], at + 2
    if length >= 0x80:
        start += length - 0x80
        length = int.from_bytes(der[at + 2 : start])
    return der[at], start, start + length
