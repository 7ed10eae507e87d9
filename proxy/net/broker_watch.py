"""Whether the broker behind one listener takes connections: the listener listens only while one of them does.

A client whose connection is refused tries another broker, or this one again later. One that is accepted and closed
again takes it for a connection that broke. There are clients that open the next one at once, and keep several to one
broker when it is back, of which they use any for anything, and what needs to know its own connection suffers for
minutes.
So Sluice answers a connect as its broker would:

- The broker **refuses**, cannot be routed to, or its name does not resolve: Sluice does not listen, so clients are
  refused, too. What waits in the backlog is reset.
- A client's connection to the broker **times out** (``connect_timeout_s``): the same. Directly the client would wait
  as long for nothing; accepted here it would send what nobody gets. A refusal tells it at once.
- The broker's system takes connections and the broker **hangs**: Sluice listens. Directly, clients would be connected
  and wait for their answers, too; whether and when an answer is due is the client's to know. Those who are connected
  stay so, and lose nothing when it goes on. When the broker's backlog is full connects time out, as above.
- **TLS** to the broker fails: the same as one that refuses, as nobody could be served.
- **One of several** brokers: each listener goes by the address behind it alone. Clients know of their brokers by
  themselves, from a name server or their configuration, and go on with the others.
- **With backups**: the first that answers is the one that clients are connected to, in the order of the configuration.
  While that is a backup, those before it are tried every second. Who is connected to it stays there.

While it waits it tries to connect often at first, then once a second, and listens as soon as that succeeds. While it
listens it asks only when there is a reason: at the start, when somebody wants to know, and when the broker has ended
a connection, before the client of that connection hears of it and comes again.
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

#: How long one try may take; also what a probe of the broker's health waits at most.
_TRY_S: Final = 1.0
#: A broker that has been away for 3 s is tried every 0.1 s, one that has for 30 s or longer every second.
_SHORTEST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 1.0
_WAIT_SHARE: Final = 1 / 30
#: A broker that ends may close its connections before it stops listening: one was seen to do so up to 50 ms before,
#: most often less than 10. It is tried after so long, and before the client hears of it.
SETTLE_S: Final = 0.05
#: So long the end of a client's connection waits for that try.
_HOLD_BACK_S: Final = 0.2


class BrokerWatch:
    """Opens and closes one listener's sockets to clients.

    Args:
        listener: its name, for the log.
        brokers: the address behind it, and those of its backups.
        connect_timeout_s: what a connection to the broker may take.
        listening: the listener's sockets, bound.
        proxy_protocol: version of the PROXY header that the broker expects, if it does.
        tls: what TLS is spoken to the broker by, if it is.
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
        """What happened at the last try; None when the broker took the connection."""
        self.listening = False
        self.broker = brokers[0]
        """The one that clients are connected to."""
        self.passed_over: tuple[str, ...] = ()
        """The brokers before it, each with what was wrong when it was last tried."""
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
        #: A client could not be connected since the last try.
        self._lost = False
        self._away_since_s: float | None = None
        self._wanted = trio.Event()
        self._tried = trio.Event()
        self._log_rate = LogRate()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the broker until cancelled; started once it has been tried for the first time."""
        await self._try()
        task_status.started()
        while True:
            with trio.move_on_after(self._wait_s()) as waiting:
                await self._wanted.wait()
            await self._try(better=waiting.cancelled_caught and self._away_since_s is None)

    @property
    def backup(self) -> int:
        """The number of the backup that clients are connected to; 0 is the broker itself."""
        return self._brokers.index(self.broker)

    @property
    def backups(self) -> int:
        """How many there are."""
        return len(self._brokers) - 1

    def in_order(self) -> list[Address]:
        """Return where to connect a client: the broker, and what may be tried if that refuses."""
        return [self.broker, *(each for each in self._brokers if each != self.broker)]

    def greet(self, wire: Wire, broker: Address, client: tuple[Address, Address] | None = None) -> Wire:
        """Begin a connection to a broker as that expects it; return the wire to go on by, with ``handshake`` first.

        Args:
            wire: connected to it.
            broker: its address, as configured.
            client: for whom it is: the client's address, and the one that it has connected to; None is Sluice itself.

        Raises:
            TlsError: TLS cannot be begun.
            OSError: the broker has left already.
        """
        if self._proxy_protocol is not None:
            # In Sluice's own name, too: RabbitMQ 3.10 crashes on a header without addresses.
            source, destination = client or (wire.local_address(), wire.remote_address())
            left = wire.send_now([make(self._proxy_protocol, source, destination)])
            # That little a new socket always takes.
            assert not left  # noqa: S101 - as above
        return wire if self._tls is None else self._tls.over(wire, broker[0])

    async def reach(self) -> str | None:
        """Try the broker, unless it is known to be away, and return what is wrong with it."""
        if self._away_since_s is None:
            self._wanted.set()
            await self._tried.wait()
        return self.error

    async def broker_left(self) -> None:
        """Try the broker, because it has ended a connection; returns when that is done or takes too long."""
        if self.listening:
            await trio.sleep(SETTLE_S)
            with trio.move_on_after(_HOLD_BACK_S):
                await self.reach()

    def lost(self, error: str) -> None:
        """Stop listening, because the broker could not be connected to for a client; or look for a backup first."""
        if len(self._brokers) == 1:
            self._away(error)
        self._lost = True
        self._wanted.set()

    def connected(self, broker: Address) -> None:
        """Take note of which broker a client was connected to; if that is another one, the others are looked at."""
        if broker != self.broker:
            self._wanted.set()

    def hold(self) -> None:
        """Accept nobody and leave the sockets as they are, since another process is about to have them."""
        self._closed = True
        self.listening = False
        for each in self.sockets:
            each.hold()

    def go_on(self) -> None:
        """Take ``hold`` back: no other process has the sockets."""
        self._closed = False
        self._wanted.set()

    def close(self) -> None:
        """Stop listening for good; the broker may still be asked about."""
        self._closed = True
        self.listening = False
        for each in self.sockets:
            each.close()

    def _wait_s(self) -> float:
        if self._away_since_s is None:
            return float("inf") if self.broker == self._brokers[0] else _LONGEST_WAIT_S
        away_s = trio.current_time() - self._away_since_s
        return min(max(away_s * _WAIT_SHARE, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)

    async def _try(self, *, better: bool = False) -> None:
        """Try the brokers in turn, or only those that come before the one that clients are connected to."""
        lost = False
        if not better:
            # Before the try: whoever wants one while it is under way gets another one.
            self._wanted = trio.Event()
            lost, self._lost = self._lost, False
        errors: dict[Address, str] = {}
        away = True
        for broker in self._brokers[: self.backup] if better else self._brokers:
            try:
                await self._reach(broker)
            except sockets.NoRoomError as error:
                # It says nothing of the broker, but that it has to be tried again.
                errors[broker], away = f"no socket left to try it: {error.strerror}", False
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
        """Connect to a broker, by TLS if it is spoken to so, and part from it.

        Raises:
            OSError: it takes no connection, or is not to be trusted.
            trio.TooSlowError: nor does it refuse one.
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
                # Without TLS it is enough that it took the connection.
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
        _log.warning("broker unreachable; not listening until it answers", **self._about, error=error)

    def _answers(self, broker: Address, before: Mapping[Address, str]) -> None:
        """Have clients connected to a broker; ``before`` it others were tried, in vain."""
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
            self._give_way(error)
            return
        self.listening = True
        if self._away_since_s is not None:
            self._away_since_s = None
            _log.info("broker answers; listening", **self._about)

    def _give_way(self, error: OSError) -> None:
        """Try again later: somebody else took the address while nobody listened there."""
        for each in self.sockets:
            each.pause()
        if self._away_since_s is None:
            self._away_since_s = trio.current_time()
        self.error = f"cannot listen on {self._about['listen']}: {error.strerror or error}"
        not_logged = self._log_rate.take(error.errno, trio.current_time())
        if not_logged is not None:
            _log.error("cannot listen", **self._about, error=error.strerror, not_logged=not_logged)


def _named(errors: Mapping[Address, str]) -> Iterator[str]:
    """Say of brokers what is wrong with each."""
    return (f"{format_address(broker)}: {error}" for broker, error in errors.items())
