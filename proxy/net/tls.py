"""TLS for wires: callers read and write plaintext, and the socket carries ciphertext.

OpenSSL uses memory buffers, because Python's TLS sockets block and trio's need a task per direction. A TLS wire may
read more from the socket than fits in the caller's buffer (see ``has_unread``), and may accept data that the socket
does not accept yet (see ``send_now``). A read returns early if decryption is slow: 256 KiB of tiny records took 0.2 s.
"""

import errno
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from select import EPOLLIN, EPOLLOUT
from time import perf_counter_ns
from typing import Any, Final

from proxy.net.reactor import ROUND_NS
from proxy.net.sockets import Wire
from proxy.protocols.base import Buffer

#: Maximum plaintext per record (RFC 8446, section 5.1).
_RECORD_BYTES: Final = 16 * 1024
_OVERHEAD_BYTES: Final = 256
#: Shared by all wires, because no data stays in it between calls.
_SCRATCH: Final = memoryview(bytearray(64 * 1024))
#: How much ciphertext to decrypt at a time. OpenSSL's buffers grow to this size and never shrink.
_PIECE_BYTES: Final = _RECORD_BYTES + _OVERHEAD_BYTES
#: The same while decryption is slow. Enough for 40 tiny records.
_SMALL_PIECE_BYTES: Final = 1024
_AHEAD_BYTES: Final = 128 * 1024
#: Limits on unsent replies to key updates, in case the peer does not read them.
_MAX_ANSWERS: Final = 64
_MAX_UNSENT_BYTES: Final = 2 * (_AHEAD_BYTES + _RECORD_BYTES)
_NAME_CHARS: Final = 255
_UNREAD: Final = "<unsupported>"
"""Python returns this text for an alternative name that it cannot parse."""

_OF_CLIENTS: Final = {
    "HTTP_REQUEST": "the client sent HTTP instead of a TLS handshake",
    "NO_SHARED_CIPHER": "the client offers no cipher that the listener accepts (tls_ciphers)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, and the listener requires one",
    "UNSUPPORTED_PROTOCOL": "the client offers only TLS versions that are too old (tls_minimum_version)",
    "WRONG_VERSION_NUMBER": 'the client did not start a TLS handshake; enable TLS in the client, or set tls = "accept"'
    " to also serve clients without TLS",
}
_OF_BROKERS: Final = {
    "WRONG_VERSION_NUMBER": "the broker does not speak TLS on this port; use its TLS port, or remove broker_tls",
    "UNEXPECTED_EOF_WHILE_READING": "the broker ended the handshake; if it does not speak TLS on this port, use its TLS"
    " port, or remove broker_tls",
}
#: Alerts that reject Sluice's certificate (RFC 8446, section 6.2).
_DISTRUST: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
)


class TlsError(OSError):
    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTO, f"TLS: {what}")


class ClientTls:
    def __init__(self, context: ssl.SSLContext, *, required: bool) -> None:
        self.context = context
        self.required = required

    def over(self, wire: Wire) -> "TlsWire":
        return TlsWire(wire, self.context, _OF_CLIENTS)


class BrokerTls:
    """TLS for connections to a broker. ``context`` applies to new handshakes and may be replaced."""

    def __init__(self, context: ssl.SSLContext, server_name: str = "") -> None:
        self.context = context
        self.server_name = server_name

    def over(self, wire: Wire, host: str) -> "TlsWire":
        return TlsWire(wire, self.context, _OF_BROKERS, self.server_name or host)


class TlsWire(Wire):
    """A wire that uses TLS.

    Args:
        meanings: Error texts, keyed by OpenSSL's reason.
        server_name: The name of the server to connect to. None if Sluice is the server.
    """

    def __init__(
        self,
        plain: Wire,
        context: ssl.SSLContext,
        meanings: Mapping[str, str],
        server_name: str | None = None,
    ) -> None:
        self._sock = plain.hand_over()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = context.wrap_bio(
                self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
            )
        except ValueError as error:
            raise TlsError(f"{server_name!r} is not a valid server name: {error}") from None
        #: Given a buffer, ``read`` returns the number of bytes. typeshed lacks this signature.
        self._read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment] # see above
        self._meanings = meanings
        self._begins, self._shaken = server_name is not None, False
        self._unsent: Sequence[Buffer] = ()
        #: Whether OpenSSL may hold plaintext that did not fit in the caller's buffer.
        self._left = False
        #: Ciphertext that is not decrypted yet, because decryption was slow.
        self._undecrypted = b""
        self._piece_bytes = _PIECE_BYTES
        self._decrypted = b""
        self._over: OSError | None = None
        self._in_order = False

    def handshake(self) -> int:
        if self._unsent:
            self._unsent = super().send_now(self._unsent)
            if self._unsent:
                return EPOLLOUT
        while not self._shaken:
            if self._begins:
                self._begins = False
            else:
                count = super().receive_into(_SCRATCH[:_PIECE_BYTES])
                if count is None:
                    return EPOLLIN
                if not count:
                    raise TlsError("the peer disconnected during the handshake")
                self._incoming.write(_SCRATCH[:count])
            self._take_step()
            if self._unsent:
                return EPOLLOUT
        self._left = bool(self._incoming.pending)
        return 0

    def _take_step(self) -> None:
        failed = None
        try:
            self._tls.do_handshake()
            self._shaken = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ssl.CertificateError) as error:
            failed = TlsError(_readable_error(error, self._meanings))
        if said := self._outgoing.read():
            # If the handshake has failed, this tells the peer why.
            with suppress(*((OSError,) if failed else ())):
                self._unsent = super().send_now([said])
        if failed is not None:
            raise failed

    @property
    def version(self) -> str:
        return self._tls.version() or ""

    @property
    def certificate(self) -> str:
        """The name in the peer's verified certificate (see ``name_in``). Empty if the peer has no certificate."""
        certificate = self._tls.getpeercert()
        return name_in(certificate, self._tls.getpeercert(binary_form=True) or b"") if certificate else ""

    @property
    def has_unread(self) -> bool:
        return bool(self._left or self._undecrypted or self._decrypted or self._ahead) or self._has_ended

    def has_left(self, *, half_closes: bool) -> bool:
        return not self._left and not self._undecrypted and super().has_left(half_closes=half_closes)

    def receive_into(self, buffer: memoryview) -> int | None:
        """Receive plaintext, with the same results as ``Wire.receive_into``.

        The stream may end without a TLS ``close_notify`` alert, because the application protocol detects truncation.
        """
        count = len(self._decrypted[: len(buffer)])
        buffer[:count], self._decrypted = self._decrypted[:count], self._decrypted[count:]
        if self._left:
            count = self._decrypt(buffer, count)
        ends_ns = perf_counter_ns() + ROUND_NS
        while count < len(buffer) and not self._has_ended:
            if self._undecrypted:
                ciphertext, self._undecrypted = memoryview(self._undecrypted), b""
                count = self._decrypt_all(ciphertext, buffer, count, ends_ns)
                if perf_counter_ns() >= ends_ns:
                    break
                continue
            missing = len(buffer) - count
            most = min(len(_SCRATCH), missing + (missing // _RECORD_BYTES + 1) * _OVERHEAD_BYTES)
            most = max(most, _PIECE_BYTES) if self._piece_bytes == _PIECE_BYTES else self._piece_bytes
            try:
                received = super().receive_into(_SCRATCH[:most])
            except OSError as error:
                self._over = error
                break
            if not received:
                self._in_order = received == 0
                break
            count = self._decrypt_all(_SCRATCH[:received], buffer, count, ends_ns)
            if received < most or perf_counter_ns() >= ends_ns:
                break
        if self._outgoing.pending:
            self._answer()
        if count:
            return count
        if self._over is not None:
            raise self._over
        return 0 if self._in_order else None

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Send data and return the rest. If only ciphertext is left to send, return an empty buffer."""
        if self._unsent:
            self._unsent = super().send_now(self._unsent)
            if self._unsent:
                return buffers
        left = memoryview(b"".join(buffers))
        while left:
            ahead, left = left[:_AHEAD_BYTES], left[_AHEAD_BYTES:]
            # Encrypt one record at a time, because OpenSSL's buffers never shrink.
            records = [ahead[at : at + _RECORD_BYTES] for at in range(0, len(ahead), _RECORD_BYTES)]
            self._unsent = super().send_now([self._encrypted(record) for record in records])
            if self._unsent:
                return [left]
        return ()

    def end(self) -> None:
        if self._left:
            # ``unwrap`` also reads the peer's ``close_notify``, and would drop the data before it.
            self._buffer_decrypted()
        # Usually the peer has not sent its ``close_notify`` yet.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        with suppress(OSError):
            super().send_now([*self._unsent, self._outgoing.read()])
        super().end()

    @property
    def _has_ended(self) -> bool:
        return self._in_order or self._over is not None

    def _decrypt_all(self, ciphertext: memoryview, buffer: memoryview, count: int, ends_ns: int) -> int:
        at = 0
        while at < len(ciphertext) and not self._has_ended:
            began_ns = perf_counter_ns()
            if began_ns >= ends_ns and at:
                self._undecrypted = bytes(ciphertext[at:])
                break
            piece = ciphertext[at : at + self._piece_bytes]
            at += self._incoming.write(piece)
            count = self._decrypt(buffer, count)
            is_slow = perf_counter_ns() - began_ns >= ROUND_NS
            self._piece_bytes = _SMALL_PIECE_BYTES if is_slow else min(2 * self._piece_bytes, _PIECE_BYTES)
        return count

    def _decrypt(self, buffer: memoryview, count: int) -> int:
        self._left = False
        while count < len(buffer):
            try:
                read = self._read(len(buffer) - count, buffer[count:])
            except ssl.SSLWantReadError:
                return count
            except ssl.SSLZeroReturnError:
                read = 0
            except ssl.SSLError as error:
                self._over = TlsError(_readable_error(error, {}))
                return count
            if not read:
                self._in_order = True
                return count
            count += read
            if count < len(buffer) and not self._incoming.pending:
                # No complete record is left. Trying again would take as long as decrypting a small record.
                return count
        self._left = True
        return count

    def _buffer_decrypted(self) -> None:
        room = memoryview(bytearray(_RECORD_BYTES))
        while self._left:
            self._decrypted += room[: self._decrypt(room, 0)]

    def _encrypted(self, record: Buffer) -> bytes:
        try:
            self._tls.write(record)
        except ssl.SSLError as error:
            raise TlsError(_readable_error(error, {})) from None
        return self._outgoing.read()

    def _answer(self) -> None:
        self._unsent = [*self._unsent, self._outgoing.read()]
        with suppress(OSError):
            self._unsent = super().send_now(self._unsent)
        if len(self._unsent) > _MAX_ANSWERS or sum(map(len, self._unsent)) > _MAX_UNSENT_BYTES:
            self._over = TlsError("the peer keeps requesting key updates without reading the replies")


def name_in(certificate: Mapping[str, Any], encoded: bytes = b"") -> str:
    """Return the certificate's common name, or else its first alternative name, its subject or its fingerprint.

    Limits for ``certificate:*`` therefore apply to every certificate. ``encoded`` is ``certificate`` in DER form.
    """
    subject = [pair for names in certificate.get("subject", ()) for pair in names]
    common = [value for key, value in subject if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    # The last common name is the most specific (RFC 6125, section 2.3.1).
    names = [*reversed(common), *(each for each in others if each != _UNREAD), ",".join(map("=".join, subject))]
    name = next((each for each in names if each), f"sha256:{sha256(encoded).hexdigest()}" if encoded else "")
    return "".join(each if each.isprintable() else "?" for each in name[:_NAME_CHARS])


def _readable_error(error: ssl.SSLError | ssl.CertificateError, meanings: Mapping[str, str]) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate was rejected: {error.verify_message.rstrip('.')}"
    reason = getattr(error, "reason", None) or "connection lost"
    if reason in meanings:
        return meanings[reason]
    if reason.endswith(_DISTRUST):
        return f"the peer rejected Sluice's certificate ({reason.lower().replace('_', ' ')})"
    return str(reason).lower().replace("_", " ")
