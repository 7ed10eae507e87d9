"""Probes a listener's broker, so that the listener accepts clients only while the broker does.

A refused client tries another broker, or retries later. Accepting a client and then disconnecting it is worse: some
clients reconnect immediately, and some of their operations fail for minutes. Sluice therefore responds to a connection
attempt as the broker would:

- Sluice does not listen while it cannot connect to the broker, resolve its name or set up TLS. Connections in the
  backlog are reset.
- Sluice listens if the broker accepts connections but hangs, because only the client knows how long to wait.
- If there are backups, new clients are connected to the first broker that accepts them. While that is a backup, the
  brokers before it are probed every second.

An unreachable broker is probed often at first, then once a second. A reachable broker is probed on request, and when it
closes a connection. The client is disconnected only after the probe, because it may reconnect immediately.
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

_TRY_S: Final = 1.0
#: Probes are 0.1 s apart for the first 3 s, and 1 s apart after 30 s.
_MIN_WAIT_S: Final = 0.1
_MAX_WAIT_S: Final = 1.0
_WAIT_SHARE: Final = 1 / 30
#: A broker may close its connections up to 50 ms before it stops listening.
SETTLE_S: Final = 0.05
#: How long a client's connection stays open while its broker is probed.
_HOLD_BACK_S: Final = 0.2


class BrokerWatch:
    """Probes a listener's brokers. ``brokers`` lists the primary broker first, then the backups."""

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
        """Why the last probe failed. None if it succeeded."""
        self.listening = False
        self.broker = brokers[0]
        self.passed_over: tuple[str, ...] = ()
        """The brokers listed before ``broker``, each with the error from its last probe."""
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
        await self._try()
        task_status.started()
        while True:
            with trio.move_on_after(self._wait_s()) as waiting:
                await self._wanted.wait()
            await self._try(better=waiting.cancelled_caught and self._away_since_s is None)

    @property
    def backup(self) -> int:
        """The number of the backup in use, or 0 for the primary broker."""
        return self._brokers.index(self.broker)

    @property
    def backups(self) -> int:
        return len(self._brokers) - 1

    def in_order(self) -> list[Address]:
        return [self.broker, *(each for each in self._brokers if each != self.broker)]

    def greet(self, wire: Wire, broker: Address, client: tuple[Address, Address] | None = None) -> Wire:
        """Send a PROXY header and set up TLS on a new connection to the broker, if they are configured.

        ``client`` is the client's address and the address that it connected to, or None if there is no client. The
        caller must complete the returned wire's ``handshake``. Raises OSError if the broker has disconnected.
        """
        if self._proxy_protocol is not None:
            # RabbitMQ 3.10 crashes on a header without addresses.
            source, destination = client or (wire.local_address(), wire.remote_address())
            left = wire.send_now([make(self._proxy_protocol, source, destination)])
            # A new socket's send buffer always has room for the header.
            assert not left  # noqa: S101 - as above
        return wire if self._tls is None else self._tls.over(wire, broker[0])

    async def reach(self) -> str | None:
        """Probe the broker, unless it is known to be unreachable. Return the error, or None if it is reachable."""
        if self._away_since_s is None:
            self._wanted.set()
            await self._tried.wait()
        return self.error

    async def broker_left(self) -> None:
        """Probe the broker after it has closed a connection. Return early if the probe takes too long."""
        if self.listening:
            await trio.sleep(SETTLE_S)
            with trio.move_on_after(_HOLD_BACK_S):
                await self.reach()

    def lost(self, error: str) -> None:
        if len(self._brokers) == 1:
            self._away(error)
        self._lost = True
        self._wanted.set()

    def connected(self, broker: Address) -> None:
        if broker != self.broker:
            self._wanted.set()

    def hold(self) -> None:
        self._closed = True
        self.listening = False
        for each in self.sockets:
            each.hold()

    def resume(self) -> None:
        self._closed = False
        self._wanted.set()

    def close(self) -> None:
        """Stop listening. ``reach`` can still be called."""
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
        """Probe the brokers in order until one accepts. If ``better``, stop before the one in use."""
        lost = False
        if not better:
            self._wanted = trio.Event()
            lost, self._lost = self._lost, False
        errors: dict[Address, str] = {}
        away = True
        plain = "" if self._tls is None else "; if the broker does not speak TLS on this port, remove broker_tls"
        for broker in self._brokers[: self.backup] if better else self._brokers:
            try:
                await self._reach(broker)
            except sockets.NoRoomError as error:
                errors[broker], away = f"cannot open a connection: {error.strerror}", False
            except OSError as error:
                errors[broker] = (error.strerror or str(error)) + plain * isinstance(error, ConnectionResetError)
            except trio.TooSlowError:
                errors[broker], away = f"no response within {self._try_s:g} s{plain}", False
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
                # Without TLS, the broker only needs to accept the connection.
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
        _log.warning("broker unreachable; listener closed", **self._about, error=error)

    def _answers(self, broker: Address, before: Mapping[Address, str]) -> None:
        self.error = None
        self.passed_over = tuple(_named(before))
        if broker != self.broker:
            self.broker = broker
            what = f"switched to the {'primary' if broker == self._brokers[0] else 'backup'} broker"
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
            _log.info("broker reachable again; listener open", **self._about)

    def _retry_listen(self, error: OSError) -> None:
        for each in self.sockets:
            each.pause()
        if self._away_since_s is None:
            self._away_since_s = trio.current_time()
        self.error = f"cannot listen on {self._about['listen']}: {error.strerror or error}"
        not_logged = self._log_rate.take(error.errno, trio.current_time())
        if not_logged is not None:
            _log.error("listen failed", **self._about, error=error.strerror, not_logged=not_logged)


def _named(errors: Mapping[Address, str]) -> Iterator[str]:
    return (f"{format_address(broker)}: {error}" for broker, error in errors.items())
