"""TLS over a wire: the same calls with plaintext, with ciphertext on the socket.

Python's own TLS socket blocks or raises, and trio's needs a task for each direction. So the TLS session works on two
buffers in memory, and its reads and writes use the socket like all other bytes.

Two differences from a plain socket:

- More data may have been read from the socket than the reader had room for. The kernel does not report it again, so the
  reader asks for it (``Wire.has_unread``). It is little: no more is read than there is room for, except to complete a
  record. A read also ends early if decrypting takes long, because records may be tiny or hold only key updates: 256 KiB
  of these took 0.2 s.
- Data accepted for writing may remain here as ciphertext. ``send_now`` then returns at least an empty buffer, so that
  it is called again.

Memory: a waiting connection keeps two OpenSSL buffers of some 20 KiB each once they were used. Ciphertext that the
kernel does not accept is at most ``_AHEAD_BYTES`` and a record.
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

#: Size of one record (RFC 8446, 5.1), and its maximum overhead on the wire.
_RECORD_BYTES: Final = 16 * 1024
_OVERHEAD_BYTES: Final = 256
#: Buffer of one read from the socket. All connections share it, because it is empty after each call.
_SCRATCH: Final = memoryview(bytearray(64 * 1024))
#: Ciphertext decrypted at a time. OpenSSL's buffers grow to this size and never shrink.
_PIECE_BYTES: Final = _RECORD_BYTES + _OVERHEAD_BYTES
#: The same for a peer whose data is slow to decrypt: 40 key updates, or as many tiny records.
_SMALL_PIECE_BYTES: Final = 1024
#: Plaintext encrypted for one write to the socket.
_AHEAD_BYTES: Final = 128 * 1024
#: Maximum number of unsent TLS messages (key updates) that the peer has caused and does not read.
_MAX_ANSWERS: Final = 64
#: Maximum size of unsent data including these. Written data is at most half of it.
_MAX_UNSENT_BYTES: Final = 2 * (_AHEAD_BYTES + _RECORD_BYTES)
#: Longer names are cut, like the names of all scopes.
_NAME_CHARS: Final = 255
_UNREAD: Final = "<unsupported>"
"""Python's text for an alternative name that it cannot read."""

#: OpenSSL's errors for a client, and what they mean to an operator.
_OF_CLIENTS: Final = {
    "HTTP_REQUEST": "it sent HTTP instead of a TLS handshake",
    "NO_SHARED_CIPHER": "it offers no cipher that the listener accepts (tls_ciphers)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no certificate, and the listener requires one",
    "UNSUPPORTED_PROTOCOL": "it offers only versions of TLS older than the listener accepts (tls_minimum_version)",
    "WRONG_VERSION_NUMBER": 'it did not begin with a TLS handshake; enable TLS in the client, or set tls = "accept"'
    " to also serve clients without TLS",
}
_OF_BROKERS: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port; use its TLS port, or remove broker_tls",
}
#: Alerts that reject the certificate that the peer was shown (RFC 8446, 6.2).
_DISTRUST: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
)


class TlsError(OSError):
    """TLS with a peer failed. ``strerror`` is for people."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTO, f"TLS: {what}")


class ClientTls:
    def __init__(self, context: ssl.SSLContext, *, required: bool) -> None:
        self.context = context
        self.required = required

    def over(self, wire: Wire) -> "TlsWire":
        return TlsWire(wire, self.context, _OF_CLIENTS)


class BrokerTls:
    """TLS with a broker.

    Args:
        context: For new handshakes. A reload replaces it. It also decides whether the name is verified.
        server_name: The host name or IP address that the broker's certificate must be for. Empty: the broker's host.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str = "") -> None:
        self.context = context
        self.server_name = server_name

    def over(self, wire: Wire, host: str) -> "TlsWire":
        """Return the wire to the broker, connected to ``host``. Raises TlsError if the server name is invalid."""
        return TlsWire(wire, self.context, _OF_BROKERS, self.server_name or host)


class TlsWire(Wire):
    """One connected socket with TLS over it. Errors of the peer are raised as OSError.

    Args:
        plain: The connected wire. It must not be used any more.
        meanings: Texts for people, by OpenSSL's reason for a failed handshake.
        server_name: The server's name, if the peer is the server.
    """

    def __init__(
        self,
        plain: Wire,
        context: ssl.SSLContext,
        meanings: Mapping[str, str],
        server_name: str | None = None,
    ) -> None:
        # The socket already has its options.
        self._sock = plain.hand_over()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = context.wrap_bio(
                self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
            )
        except ValueError as error:
            raise TlsError(f"{server_name!r} is not a valid server name: {error}") from None
        #: With a buffer it returns the number of bytes read, which typeshed's type lacks.
        self._read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment] # as said
        self._meanings = meanings
        #: This side sends the first handshake message, and whether the handshake is done.
        self._begins, self._shaken = server_name is not None, False
        self._unsent: Sequence[Buffer] = ()
        #: There may be plaintext that needs nothing more from the socket.
        self._left = False
        #: Ciphertext left over for lack of time, and how much is decrypted at a time.
        self._undecrypted = b""
        self._piece_bytes = _PIECE_BYTES
        #: Plaintext that was decrypted before its reader asked for it.
        self._decrypted = b""
        #: The stream has ended, with an error or in order.
        self._over: OSError | None = None
        self._in_order = False

    def handshake(self) -> int:
        """Continue the handshake. Return EPOLLIN or EPOLLOUT to wait for, or 0 once it is done.

        Raises:
            TlsError: The peers cannot agree, or one does not trust the other.
            OSError: The socket failed, or the peer has left.
        """
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
                    raise TlsError("it disconnected during the handshake")
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
            # Also after a failure, or the peer would not know the reason.
            with suppress(*((OSError,) if failed else ())):
                self._unsent = super().send_now([said])
        if failed is not None:
            raise failed

    @property
    def version(self) -> str:
        return self._tls.version() or ""

    @property
    def certificate(self) -> str:
        """The name in the peer's certificate, as in ``name_in``. Empty without a verified certificate."""
        certificate = self._tls.getpeercert()
        return name_in(certificate, self._tls.getpeercert(binary_form=True) or b"") if certificate else ""

    @property
    def has_unread(self) -> bool:
        """Whether there is data to receive, or the end of the stream, that the kernel no longer reports."""
        return bool(self._left or self._undecrypted or self._decrypted or self._ahead) or self._has_ended

    def has_left(self, *, half_closes: bool) -> bool:
        return not self._left and not self._undecrypted and super().has_left(half_closes=half_closes)

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read available bytes. Returns their number, 0 at the end of the stream, None if there are none.

        A stream without TLS's closing message still ends in order, because truncation is for the protocol above to
        notice.
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
        """Write as much as the kernel accepts without waiting. Returns the rest, in order.

        The rest is an empty buffer if everything is encrypted but not all of it is written.
        """
        if self._unsent:
            self._unsent = super().send_now(self._unsent)
            if self._unsent:
                return buffers
        left = memoryview(b"".join(buffers))
        while left:
            ahead, left = left[:_AHEAD_BYTES], left[_AHEAD_BYTES:]
            # Record by record, because OpenSSL's buffers grow and never shrink.
            records = [ahead[at : at + _RECORD_BYTES] for at in range(0, len(ahead), _RECORD_BYTES)]
            self._unsent = super().send_now([self._encrypted(record) for record in records])
            if self._unsent:
                return [left]
        return ()

    def end(self) -> None:
        """Send the end of the stream. Reading continues."""
        if self._left:
            # OpenSSL looks for the peer's close while it sends ours, and would drop data that it finds instead.
            self._buffer_decrypted()
        # Usually the peer has not sent its close yet. After a failure nothing is sent.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        # The peer may have gone, which the reader reports.
        with suppress(OSError):
            super().send_now([*self._unsent, self._outgoing.read()])
        super().end()

    @property
    def _has_ended(self) -> bool:
        return self._in_order or self._over is not None

    def _decrypt_all(self, ciphertext: memoryview, buffer: memoryview, count: int, ends_ns: int) -> int:
        """Decrypt in pieces, as ``_decrypt``. Keep the rest when time is up."""
        at = 0
        while at < len(ciphertext) and not self._has_ended:
            began_ns = perf_counter_ns()
            if began_ns >= ends_ns and at:
                self._undecrypted = bytes(ciphertext[at:])
                break
            piece = ciphertext[at : at + self._piece_bytes]
            at += self._incoming.write(piece)
            count = self._decrypt(buffer, count)
            # A slow peer may become fast again.
            is_slow = perf_counter_ns() - began_ns >= ROUND_NS
            self._piece_bytes = _SMALL_PIECE_BYTES if is_slow else min(2 * self._piece_bytes, _PIECE_BYTES)
        return count

    def _decrypt(self, buffer: memoryview, count: int) -> int:
        """Decrypt into a buffer after its first ``count`` bytes. Returns the new count."""
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
                # No complete record is left. Trying again would cost as much as a small record.
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
        """Send TLS's own messages if possible now. Otherwise they go with the next write."""
        self._unsent = [*self._unsent, self._outgoing.read()]
        with suppress(OSError):
            self._unsent = super().send_now(self._unsent)
        if len(self._unsent) > _MAX_ANSWERS or sum(map(len, self._unsent)) > _MAX_UNSENT_BYTES:
            self._over = TlsError("it keeps asking for new keys and does not read the answers")


def name_in(certificate: Mapping[str, Any], encoded: bytes = b"") -> str:
    """Return a certificate's name: common name, first alternative name, whole subject, or fingerprint.

    Every certificate has a name, because one without would escape a limit for ``certificate:*``.

    Args:
        certificate: As returned by ``ssl.SSLSocket.getpeercert``.
        encoded: The same in DER, for the fingerprint.
    """
    subject = [pair for names in certificate.get("subject", ()) for pair in names]
    common = [value for key, value in subject if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    # Of several common names the last is the most specific (RFC 6125, 2.3.1).
    names = [*reversed(common), *(each for each in others if each != _UNREAD), ",".join(map("=".join, subject))]
    name = next((each for each in names if each), f"sha256:{sha256(encoded).hexdigest()}" if encoded else "")
    return "".join(each if each.isprintable() else "?" for each in name[:_NAME_CHARS])


def _readable_error(error: ssl.SSLError | ssl.CertificateError, meanings: Mapping[str, str]) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was rejected: {error.verify_message.rstrip('.')}"
    reason = getattr(error, "reason", None) or "connection lost"
    if reason in meanings:
        return meanings[reason]
    if reason.endswith(_DISTRUST):
        return f"it rejected Sluice's certificate ({reason.lower().replace('_', ' ')})"
    return str(reason).lower().replace("_", " ")
