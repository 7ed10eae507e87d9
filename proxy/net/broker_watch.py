"""Checks the broker behind one listener. The listener listens only while its broker accepts connections.

A client whose connection is refused tries another broker, or the same one later. To a client, a connection that is
accepted and then closed is broken. Some clients reopen it at once, end up with several connections to one broker and
use any of them, so operations that depend on their own connection fail for minutes. So Sluice answers a connect as its
broker would:

- The broker **refuses**, is unreachable, or its name does not resolve: Sluice does not listen, so clients are refused.
  Connections in the backlog are reset. **TLS** to the broker fails: the same.
- A client's connection to the broker **times out** (``connect_timeout_s``): the same. If Sluice accepted the client,
  its data would go nowhere.
- The broker's kernel accepts connections and the broker **hangs**: Sluice listens, because only the client knows when
  an answer is due. Connected clients lose nothing when the broker recovers. When its backlog is full, connects time
  out, as above.
- **One of several** brokers: each listener depends only on its own broker. Clients know the others.
- **With backups**: clients are connected to the first broker that answers, in the configured order. While that is a
  backup, those before it are tried every second. Existing connections stay with the backup.

While the broker is away, it is tried often at first, then once a second. While it answers, it is tried only on request
and when it has closed a connection, before that connection's client is told and reconnects.
"""

from collections.abc import Iterator, Mapping, Sequence
from select import EPOLLIN
from typing import Final

import structlog
import trio

from proxy.common.log_rate import LogRate
from proxy.net import sockets
from proxy.net.proxy_protocol import Version, make
from proxy.net.sockets import Address, ListeningSocket, Wire, format_address
from proxy.net.tls import BrokerTls

_log = structlog.get_logger(__name__)

#: Time limit of one try, and so of a health probe.
_TRY_S: Final = 1.0
#: A broker that has been away for 3 s is tried every 0.1 s. After 30 s it is tried every second.
_MIN_WAIT_S: Final = 0.1
_MAX_WAIT_S: Final = 1.0
_WAIT_SHARE: Final = 1 / 30
#: A broker that shuts down may close its connections up to 50 ms before it stops listening. It is tried after this
#: time, before the client is told.
SETTLE_S: Final = 0.05
#: How long the end of a client's connection waits for that try.
_HOLD_BACK_S: Final = 0.2


class BrokerWatch:
    """Opens and closes the listening sockets of one listener.

    Args:
        brokers: The broker's address, followed by its backups.
        connect_timeout_s: Time limit of a connection to the broker.
        listening: The listener's bound sockets.
        proxy_protocol: Version of the PROXY header that the broker expects, if any.
    """

    def __init__(
        self,
        listener: str,
        brokers: Sequence[Address],
        connect_timeout_s: float,
        listening: Sequence[ListeningSocket],
        *,
        proxy_protocol: Version | None = None,
        tls: BrokerTls | None = None,
    ) -> None:
        self.sockets = listening
        self.error: str | None = "not tried yet"
        """The error of the last try. None if the broker accepted the connection."""
        self.listening = False
        self.broker = brokers[0]
        """The broker that clients are connected to."""
        self.passed_over: tuple[str, ...] = ()
        """The brokers before it, each with the error of its last try."""
        self._brokers = brokers
        self._proxy_protocol = proxy_protocol
        self._tls = tls
        self._try_s = min(_TRY_S, connect_timeout_s)
        self._about = {
            "listener": listener,
            "listen": ", ".join(format_address(each.address) for each in listening),
            "broker": ", ".join(map(format_address, brokers)),
        }
        self._closed = False
        self._lost = False
        self._away_since_s: float | None = None
        self._wanted = trio.Event()
        self._tried = trio.Event()
        self._log_rate = LogRate()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the broker until cancelled. Started once the first try is over."""
        await self._try()
        task_status.started()
        while True:
            with trio.move_on_after(self._wait_s()) as waiting:
                await self._wanted.wait()
            await self._try(better=waiting.cancelled_caught and self._away_since_s is None)

    @property
    def backup(self) -> int:
        """The number of the backup in use. 0 is the primary broker."""
        return self._brokers.index(self.broker)

    @property
    def backups(self) -> int:
        return len(self._brokers) - 1

    def in_order(self) -> list[Address]:
        """Return the addresses to connect a client to: the broker in use, then the alternatives."""
        return [self.broker, *(each for each in self._brokers if each != self.broker)]

    def greet(self, wire: Wire, broker: Address, client: tuple[Address, Address] | None = None) -> Wire:
        """Begin a connection to a broker with a PROXY header and TLS, as configured.

        Args:
            wire: A wire connected to the broker.
            broker: The broker's configured address.
            client: The client's address and the address it connected to. None: the connection is Sluice's own.

        Returns:
            The wire to use. Its ``handshake`` comes first.

        Raises:
            TlsError: TLS cannot be started.
            OSError: The broker has closed the connection.
        """
        if self._proxy_protocol is not None:
            # Also for Sluice's own connections: RabbitMQ 3.10 crashes on a header without addresses.
            source, destination = client or (wire.local_address(), wire.remote_address())
            left = wire.send_now([make(self._proxy_protocol, source, destination)])
            # A new socket always has room for the header.
            assert not left  # noqa: S101 - as above
        return wire if self._tls is None else self._tls.over(wire, broker[0])

    async def reach(self) -> str | None:
        """Try the broker, unless it is known to be away, and return the error."""
        if self._away_since_s is None:
            self._wanted.set()
            await self._tried.wait()
        return self.error

    async def broker_left(self) -> None:
        """Try the broker after it closed a connection. Returns when that is done or takes too long."""
        if self.listening:
            await trio.sleep(SETTLE_S)
            with trio.move_on_after(_HOLD_BACK_S):
                await self.reach()

    def lost(self, error: str) -> None:
        """Handle a failed connect for a client: stop listening, or try the backups first."""
        if len(self._brokers) == 1:
            self._away(error)
        self._lost = True
        self._wanted.set()

    def connected(self, broker: Address) -> None:
        """Note the broker that a client was connected to. If it is not the one in use, try them all."""
        if broker != self.broker:
            self._wanted.set()

    def hold(self) -> None:
        """Stop accepting but leave the sockets alone, because another process is about to take them."""
        self._closed = True
        self.listening = False
        for each in self.sockets:
            each.hold()

    def resume(self) -> None:
        """Undo ``hold``: no other process has the sockets."""
        self._closed = False
        self._wanted.set()

    def close(self) -> None:
        """Stop listening permanently. ``reach`` still works."""
        self._closed = True
        self.listening = False
        for each in self.sockets:
            each.close()

    def _wait_s(self) -> float:
        if self._away_since_s is None:
            return float("inf") if self.broker == self._brokers[0] else _MAX_WAIT_S
        away_s = trio.current_time() - self._away_since_s
        return min(max(away_s * _WAIT_SHARE, _MIN_WAIT_S), _MAX_WAIT_S)

    async def _try(self, *, better: bool = False) -> None:
        """Try the brokers in order, or only those before the one in use."""
        lost = False
        if not better:
            # Set before the try, so a request during it leads to another try.
            self._wanted = trio.Event()
            lost, self._lost = self._lost, False
        errors: dict[Address, str] = {}
        away = True
        for broker in self._brokers[: self.backup] if better else self._brokers:
            try:
                await self._reach(broker)
            except sockets.NoRoomError as error:
                # This tells nothing about the broker. It must be tried again.
                errors[broker], away = f"no file descriptor left to connect: {error.strerror}", False
            except OSError as error:
                errors[broker] = error.strerror or str(error)
            except trio.TooSlowError:
                errors[broker], away = f"no answer within {self._try_s:g} s", False
            else:
                self._answers(broker, errors)
                break
        else:
            if better:
                self.passed_over = tuple(_named(errors))
            else:
                self.error = "; ".join(_named(errors) if self.backups else errors.values())
                if away or lost or not self.listening:
                    self._away(self.error)
        if not better:
            self._tried.set()
            self._tried = trio.Event()

    async def _reach(self, broker: Address) -> None:
        """Connect to a broker, with TLS if configured, and disconnect.

        Raises:
            OSError: It does not accept the connection, or its certificate is not trusted.
            trio.TooSlowError: It does not answer.
        """
        with trio.fail_after(self._try_s):
            wire = await sockets.connect(*broker)
            try:
                wire = self.greet(wire, broker)
                while event := wire.handshake():
                    wait = trio.lowlevel.wait_readable if event == EPOLLIN else trio.lowlevel.wait_writable
                    await wait(wire.fileno())
                if self._tls is not None:
                    wire.end()
            except OSError:
                # Without TLS it is enough that the broker accepted the connection.
                if self._tls is not None:
                    raise
            finally:
                wire.close()

    def _away(self, error: str) -> None:
        self.error = error
        if self._closed or self._away_since_s is not None:
            return
        self._away_since_s = trio.current_time()
        self.listening = False
        for each in self.sockets:
            each.pause()
        _log.warning("broker unreachable; listener closed until it answers", **self._about, error=error)

    def _answers(self, broker: Address, before: Mapping[Address, str]) -> None:
        self.error = None
        self.passed_over = tuple(_named(before))
        if broker != self.broker:
            self.broker = broker
            what = f"using the {'primary' if broker == self._brokers[0] else 'backup'} broker for new connections"
            about = {"error": "; ".join(self.passed_over)} if self.passed_over else {}
            _log.warning(what, listener=self._about["listener"], broker=format_address(broker), **about)
        if self._closed or self.listening:
            return
        try:
            for each in self.sockets:
                each.start()
        except OSError as error:
            self._retry_listen(error)
            return
        self.listening = True
        if self._away_since_s is not None:
            self._away_since_s = None
            _log.info("broker answers again; listening", **self._about)

    def _retry_listen(self, error: OSError) -> None:
        """Try again later: another process took the address while nothing listened there."""
        for each in self.sockets:
            each.pause()
        if self._away_since_s is None:
            self._away_since_s = trio.current_time()
        self.error = f"cannot listen on {self._about['listen']}: {error.strerror or error}"
        not_logged = self._log_rate.take(error.errno, trio.current_time())
        if not_logged is not None:
            _log.error("cannot listen", **self._about, error=error.strerror, not_logged=not_logged)


def _named(errors: Mapping[Address, str]) -> Iterator[str]:
    return (f"{format_address(broker)}: {error}" for broker, error in errors.items())
