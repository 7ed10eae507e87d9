"""TLS over a wire: the same calls with plaintext, while ciphertext goes through the socket.

Python's own socket for TLS blocks, or says what it waits for by raising; and trio's takes a task for each direction.
So the session lies between two buffers in memory here, and what it wants to read or has to send goes the way of all
other bytes. Where certificates come from, and that they are read again, is the configuration's.

Two things are as a plain socket does not have them:

- What was read from the socket may be more than its reader had room for. The kernel does not report that again, so its
  reader asks for it (``Wire.has_unread``). It is little: no more is read than there is room for, but for what belongs
  to records. A read also ends early where decrypting takes long: records may be tiny, or hold nothing but messages of
  TLS itself (key updates), of which 256 KiB took 0.2 s.
- What was taken for writing may still lie here as ciphertext. Then ``send_now`` returns at least an empty buffer, so
  whoever writes comes again.

Memory: a connection that waits keeps two small buffers of OpenSSL's, some 20 KiB each once they were used. Ciphertext
that the kernel does not take is at most ``_AHEAD_BYTES`` and a record.
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

#: What one record holds, as RFC 8446, 5.1 has it, and by how much it may be longer on the wire.
_RECORD_BYTES: Final = 16 * 1024
_OVERHEAD_BYTES: Final = 256
#: What one call reads from the socket. Used up within the call, so all connections share it.
_SCRATCH: Final = memoryview(bytearray(64 * 1024))
#: So much of it is decrypted at a time: OpenSSL's buffers grow to that and never shrink.
_PIECE_BYTES: Final = _RECORD_BYTES + _OVERHEAD_BYTES
#: And so much of a peer of which that takes long: 40 key updates, or as many tiny records.
_SMALL_PIECE_BYTES: Final = 1024
#: So much is encrypted for one write to the socket.
_AHEAD_BYTES: Final = 128 * 1024
#: Messages of TLS itself (key updates) that the peer has caused and does not read.
_MAX_ANSWERS: Final = 64
#: What may lie here with them; what is written is at most half of it.
_MAX_UNSENT_BYTES: Final = 2 * (_AHEAD_BYTES + _RECORD_BYTES)
#: A name that is longer is cut, as the names of all scopes are.
_NAME_CHARS: Final = 255
_UNREAD: Final = "<unsupported>"
"""What Python has in place of an alternative name that it cannot read."""

#: What OpenSSL says of a client, and what that means to an operator.
_OF_CLIENTS: Final = {
    "HTTP_REQUEST": "it began with HTTP, and not with a TLS handshake",
    "NO_SHARED_CIPHER": "it offers no cipher that the listener takes (tls_ciphers)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, and the listener requires one",
    "UNSUPPORTED_PROTOCOL": "it offers older versions of TLS only than the listener takes (tls_minimum_version)",
    "WRONG_VERSION_NUMBER": 'it did not begin with a TLS handshake; turn TLS on in the client, or write tls = "accept"'
    " to serve clients without it, too",
}
_OF_BROKERS: Final = {
    "WRONG_VERSION_NUMBER": "it speaks no TLS at this port; name its TLS port, or remove broker_tls",
}
#: Alerts by which a peer says that it does not take the certificate that it was shown (RFC 8446, 6.2).
_DISTRUST: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
)


class TlsError(OSError):
    """TLS with a peer failed; ``strerror`` is for people."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTO, f"TLS: {what}")


class ClientTls:
    """TLS with the clients of a listener.

    Args:
        context: for handshakes to come; a reload puts another one there.
        required: clients without it are not served.
    """

    def __init__(self, context: ssl.SSLContext, *, required: bool) -> None:
        self.context = context
        self.required = required

    def over(self, wire: Wire) -> "TlsWire":
        """Return the wire to speak to the client by; the handshake is still to come."""
        return TlsWire(wire, self.context, _OF_CLIENTS)


class BrokerTls:
    """TLS with a broker.

    Args:
        context: for handshakes to come; a reload puts another one there. It says whether the name is verified.
        server_name: what the broker's certificate has to be for, a host name or an IP address; empty is its own host.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str = "") -> None:
        self.context = context
        self.server_name = server_name

    def over(self, wire: Wire, host: str) -> "TlsWire":
        """Return the wire to speak to the broker by; the handshake is still to come.

        Args:
            wire: to the broker.
            host: of the broker that is connected to.

        Raises:
            TlsError: the server name is none.
        """
        return TlsWire(wire, self.context, _OF_BROKERS, self.server_name or host)


class TlsWire(Wire):
    """One connected socket with TLS over it. Errors of the peer come as OSError.

    Args:
        plain: connected; not used by anybody else any more.
        context: what to shake hands by.
        meanings: what OpenSSL's words for a failed handshake mean, for people.
        server_name: of the server, if that is what the peer is.
    """

    def __init__(
        self,
        plain: Wire,
        context: ssl.SSLContext,
        meanings: Mapping[str, str],
        server_name: str | None = None,
    ) -> None:
        # It has its options already.
        self._sock = plain.hand_over()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = context.wrap_bio(
                self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
            )
        except ValueError as error:
            raise TlsError(f"{server_name!r} is no name of a server: {error}") from None
        #: Into a buffer it returns how many bytes it has read; typeshed knows it without.
        self._read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment] # as said
        self._meanings = meanings
        #: It is up to this side to say the first word of the handshake, and that is over.
        self._begins, self._shaken = server_name is not None, False
        #: Ciphertext that the kernel has not taken yet.
        self._unsent: Sequence[Buffer] = ()
        #: There may be plaintext that needs nothing more from the socket.
        self._left = False
        #: Ciphertext that was read from the socket and that there was no time for; and how much is decrypted at a time.
        self._undecrypted = b""
        self._piece_bytes = _PIECE_BYTES
        #: Plaintext that had to be read before its reader asked for it.
        self._aside = b""
        #: The stream has ended, with an error or in order.
        self._over: OSError | None = None
        self._in_order = False

    def handshake(self) -> int:
        """Go on with the handshake; return what that waits for, EPOLLIN or EPOLLOUT, and 0 once it is done.

        Raises:
            TlsError: the two cannot agree, or one does not trust the other.
            OSError: the socket failed, or the peer has left.
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
                    raise TlsError("it left in the middle of the handshake")
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
            failed = TlsError(_said(error, self._meanings))
        if said := self._outgoing.read():
            # Of a failure, too, or the peer does not know why it is left.
            with suppress(*((OSError,) if failed else ())):
                self._unsent = super().send_now([said])
        if failed is not None:
            raise failed

    @property
    def version(self) -> str:
        """The version that was agreed on, such as ``TLSv1.3``."""
        return self._tls.version() or ""

    @property
    def certificate(self) -> str:
        """The name in the certificate that the peer has shown, as ``name_in`` says; empty without a verified one."""
        certificate = self._tls.getpeercert()
        return name_in(certificate, self._tls.getpeercert(binary_form=True) or b"") if certificate else ""

    @property
    def has_unread(self) -> bool:
        """Whether there is something to receive, or the stream's end, of which the kernel knows nothing any more."""
        return bool(self._left or self._undecrypted or self._aside or self._ahead) or self._is_over

    def has_left(self, *, half_closes: bool) -> bool:
        """Return whether nobody is there any more and nothing is left to read, as ``Wire`` does."""
        return not self._left and not self._undecrypted and super().has_left(half_closes=half_closes)

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read what is there; returns the number of bytes, 0 at the end of the stream, None when nothing is there.

        A stream that ends without a word of TLS ends all the same: what is cut off in the middle is for the protocol
        above to notice, as it is without TLS.
        """
        count = len(self._aside[: len(buffer)])
        buffer[:count], self._aside = self._aside[:count], self._aside[count:]
        if self._left:
            count = self._decrypt(buffer, count)
        ends_ns = perf_counter_ns() + ROUND_NS
        while count < len(buffer) and not self._is_over:
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
        """Write as much as the kernel takes without waiting; returns what is left, in order.

        That is an empty buffer where all is encrypted and the kernel has not taken all of that.
        """
        if self._unsent:
            self._unsent = super().send_now(self._unsent)
            if self._unsent:
                return buffers
        left = memoryview(b"".join(buffers))
        while left:
            ahead, left = left[:_AHEAD_BYTES], left[_AHEAD_BYTES:]
            # Record by record, as OpenSSL's buffers grow and never shrink.
            records = [ahead[at : at + _RECORD_BYTES] for at in range(0, len(ahead), _RECORD_BYTES)]
            self._unsent = super().send_now([self._encrypted(record) for record in records])
            if self._unsent:
                return [left]
        return ()

    def end(self) -> None:
        """Send the end of the stream; reading goes on."""
        if self._left:
            # OpenSSL looks for the peer's own end as it says ours, and would drop what it finds instead.
            self._put_aside()
        # The first is usual: the peer has not said its end yet. After a failure nothing is said any more.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        # Who is gone already is told nothing; the reader reports that.
        with suppress(OSError):
            super().send_now([*self._unsent, self._outgoing.read()])
        super().end()

    @property
    def _is_over(self) -> bool:
        return self._in_order or self._over is not None

    def _decrypt_all(self, ciphertext: memoryview, buffer: memoryview, count: int, ends_ns: int) -> int:
        """Decrypt as ``_decrypt`` does, in pieces; keep what there is no time for."""
        at = 0
        while at < len(ciphertext) and not self._is_over:
            began_ns = perf_counter_ns()
            if began_ns >= ends_ns and at:
                self._undecrypted = bytes(ciphertext[at:])
                break
            piece = ciphertext[at : at + self._piece_bytes]
            at += self._incoming.write(piece)
            count = self._decrypt(buffer, count)
            # Who was slow once may be fast again.
            is_slow = perf_counter_ns() - began_ns >= ROUND_NS
            self._piece_bytes = _SMALL_PIECE_BYTES if is_slow else min(2 * self._piece_bytes, _PIECE_BYTES)
        return count

    def _decrypt(self, buffer: memoryview, count: int) -> int:
        """Decrypt into a buffer behind what is in it; returns how much is in it then."""
        self._left = False
        while count < len(buffer):
            try:
                read = self._read(len(buffer) - count, buffer[count:])
            except ssl.SSLWantReadError:
                return count
            except ssl.SSLZeroReturnError:
                read = 0
            except ssl.SSLError as error:
                self._over = TlsError(_said(error, {}))
                return count
            if not read:
                self._in_order = True
                return count
            count += read
            if count < len(buffer) and not self._incoming.pending:
                # Nothing whole is left: to be told so would cost as much as a small record.
                return count
        self._left = True
        return count

    def _put_aside(self) -> None:
        room = memoryview(bytearray(_RECORD_BYTES))
        while self._left:
            self._aside += room[: self._decrypt(room, 0)]

    def _encrypted(self, record: Buffer) -> bytes:
        try:
            self._tls.write(record)
        except ssl.SSLError as error:
            raise TlsError(_said(error, {})) from None
        return self._outgoing.read()

    def _answer(self) -> None:
        """Send what TLS itself has to say, if that can go at once; if not, it goes with what is written next."""
        self._unsent = [*self._unsent, self._outgoing.read()]
        with suppress(OSError):
            self._unsent = super().send_now(self._unsent)
        if len(self._unsent) > _MAX_ANSWERS or sum(map(len, self._unsent)) > _MAX_UNSENT_BYTES:
            self._over = TlsError("it asks for new keys, and does not read the answers")


def name_in(certificate: Mapping[str, Any], encoded: bytes = b"") -> str:
    """Return the name of a certificate: its common name, first alternative name, whole subject, or fingerprint.

    No certificate is without a name, because it would escape a limit for ``certificate:*``.

    Args:
        certificate: as ``ssl.SSLSocket.getpeercert`` returns it.
        encoded: the same, in DER; only for the fingerprint.
    """
    subject = [pair for names in certificate.get("subject", ()) for pair in names]
    common = [value for key, value in subject if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    # Of several common names the last is the most specific one (RFC 6125, 2.3.1).
    names = [*reversed(common), *(each for each in others if each != _UNREAD), ",".join(map("=".join, subject))]
    name = next((each for each in names if each), f"sha256:{sha256(encoded).hexdigest()}" if encoded else "")
    return "".join(each if each.isprintable() else "?" for each in name[:_NAME_CHARS])


def _said(error: ssl.SSLError | ssl.CertificateError, meanings: Mapping[str, str]) -> str:
    """Say for people what OpenSSL says for programs."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    reason = getattr(error, "reason", None) or "connection lost"
    if reason in meanings:
        return meanings[reason]
    if reason.endswith(_DISTRUST):
        return f"it does not accept the certificate that it was shown ({reason.lower().replace('_', ' ')})"
    return str(reason).lower().replace("_", " ")
