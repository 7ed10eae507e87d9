"""Whatever clients of AMQP 1.0 do, no more passes than a limit admits."""

import contextlib
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from random import Random
from typing import Final

import pytest
from harness.amqp_one import ACCEPTED, REJECTED, AmqpOneClient, AmqpOneError, Receiver, Sender, message, say
from harness.api import ask
from harness.artemis import Artemis
from harness.one_broker import OneBroker
from harness.ports import free_port
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

RATE: Final = 25
# Charged when it has arrived: the burst, and the least debt.
UNPAID: Final = RATE + 1
THERE: Final = 500
_STEPS: Final = 40
_AT_ONCE: Final = 4
_QUIET_S: Final = 1.0
_LIMITS: Final = "".join(
    f"""
[[limits]]
kind = "{kind}"
name = "{name}-*"
rate = {RATE}
action = "{action}"
max_debt_s = 0.01
"""
    for kind, name, action in (
        ("queue", "delayed", "delay"),
        ("queue", "refused", "reject"),
        ("delivery", "taken", "delay"),
    )
)
_numbers = count()


@pytest.fixture(scope="module", params=[pytest.param("python", marks=pytest.mark.long), "compiled"])
def sluice(request: pytest.FixtureRequest, start_sluice: StartSluice, one_broker: OneBroker) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", one_broker.address)
    listener = (
        f'[[listeners]]\nlisten = "{route.listen}"\nbroker = "{route.broker}"\nprotocol = "amqp10"\n'
        f'options = {{ scan = "{request.param}" }}\n'
    )
    return start_sluice(routes=(route,), protocol="amqp10", config=listener + _LIMITS)


@dataclass(eq=False)
class Connection:
    client: AmqpOneClient
    links: list[tuple[Sender | Receiver, int | None, bool]] = field(default_factory=list)
    unsettled: list[tuple[Sender, int]] = field(default_factory=list)
    settled: int = 0
    ended: bool = False

    def known(self) -> tuple[int, int]:
        """Return the numbers of unsettled deliveries that were accepted and rejected, as far as known."""
        codes = []
        said = [each for each in self.client.history if each.name == "disposition"]
        for _, number in self.unsettled:
            codes += [
                each["state"].descriptor for each in said if each["first"] <= number <= each.get("last", each["first"])
            ]
        return codes.count(ACCEPTED), codes.count(REJECTED)


class Run:
    def __init__(self, seed: int, broker: OneBroker, sluice: Sluice, what: str) -> None:
        self.random = Random(f"{seed} {what}")
        self.broker, self.sluice, self.takes = broker, sluice, what == "taken"
        self.queue = f"{what}-{seed}-{next(_numbers)}-{time.monotonic_ns()}"
        self.address = broker.queue(self.queue)
        self.source = f"127.{self.random.randint(1, 250)}.{self.random.randint(1, 250)}.{self.random.randint(2, 250)}"
        self.connections: list[Connection] = []
        self.least = self.most = 0
        self.metered = what == "refused"

    def go(self) -> None:
        if self.takes:
            self._fill()
        begun = time.monotonic()
        for _ in range(_STEPS):
            self._step()
        for each in self.connections:
            self._end(each)
        lasted_s = time.monotonic() - begun
        # The last one is admitted on a fraction of a permit.
        bound = ceil(RATE * lasted_s) + RATE + (UNPAID if self.metered else 0)
        if self.takes:
            came = sum(
                frame.name == "transfer" and not frame.get("more", False)
                for each in self.connections
                for frame in each.client.history
            )
            assert came <= bound, (self.queue, came, lasted_s)
        else:
            stored = self._stored()
            assert self.least <= stored <= self.most, (self.queue, stored, self.least, self.most)
            assert stored <= bound, (self.queue, stored, lasted_s)
        self._others_go_on()

    def _fill(self) -> None:
        with AmqpOneClient(self.broker.address) as direct:
            sender = direct.attach_sender(self.address)
            numbers = [sender.send(message(b"x")) for _ in range(THERE)]
            assert {sender.outcome(number).descriptor for number in numbers} == {ACCEPTED}

    def _stored(self) -> int:
        """Ask the broker itself."""
        with AmqpOneClient(self.broker.address) as direct:
            receiver = direct.attach_receiver(self.address)
            receiver.flow(100_000)
            came = 0
            with contextlib.suppress(AmqpOneError):
                while True:
                    direct.expect("transfer", timeout_s=_QUIET_S if came >= self.least else 20)
                    came += 1
            return came

    def _others_go_on(self) -> None:
        """Check that other clients are locked out no longer than paying the debt takes."""
        with AmqpOneClient(self.sluice.routes[0].listen, source="127.0.0.9") as other:
            if self.takes:
                receiver = other.attach_receiver(self.address)
                receiver.flow(1)
                receiver.receive(timeout_s=10)
                return
            sender = other.attach_sender(self.address)
            sender.wait_for_credit(timeout_s=10)
            until = time.monotonic() + 10
            while sender.outcome(sender.send(message(b"x"))).descriptor != ACCEPTED:
                assert time.monotonic() < until
                time.sleep(0.2)

    # --- Steps ------------------------------------------------------------------------------------

    def _step(self) -> None:
        random = self.random
        open_ = [each for each in self.connections if not each.ended]
        if not open_ or (len(open_) < 4 and random.random() < 0.15):
            self.connections.append(Connection(self._connect()))
            return
        connection = random.choice(open_)
        match random.randrange(12):
            case 0 | 1 | 2 if len(connection.links) < 6:
                self._attach(connection)
            case 3:
                time.sleep(random.choice([0.01, 0.1, 0.4]))
            case 4:
                self._detach(connection)
            case 5 if random.random() < 0.6:
                self._end(connection)
            case _:
                self._use(connection)

    def _connect(self) -> AmqpOneClient:
        hostnames = [None, None, "localhost", "vhost:/"]
        if isinstance(self.broker.broker, Artemis):
            # Artemis has no vhosts, and accepts any name.
            hostnames += ["vhost:other", "vhost:"]
        hostname = self.random.choice(hostnames)
        client = AmqpOneClient(self.sluice.routes[0].listen, hostname=hostname, source=self.source)
        # It may be idle while the others of its run continue.
        client._socket.settimeout(None)
        return client

    def _attach(self, connection: Connection) -> None:
        random, name = self.random, self.queue
        mode = random.choice([None, 0, 1, 2])
        if self.takes:
            escaped = f"/queues/%{ord(name[0]):02x}{name[1:]}"
            taking = f"{name}::{name}" if isinstance(self.broker.broker, Artemis) else escaped
            link = connection.client.attach_receiver(random.choice([self.address, taking]), snd_settle_mode=mode)
            connection.links.append((link, mode, False))
            return
        address: str | None
        if isinstance(self.broker.broker, Artemis):
            address = random.choice([name, f"{name}::{name}", None, ""])
        else:
            escaped = f"/queues/%{ord(name[0]):02x}{name[1:]}"
            address = random.choice([self.address, escaped, name, f"/queue/{name}", f"/amq/queue/{name}", None])
        self.metered = self.metered or not address
        sender = connection.client.attach_sender(address, snd_settle_mode=mode)
        connection.links.append((sender, mode, not address))

    def _use(self, connection: Connection) -> None:
        """Send on a link if allowed, or give credit to it."""
        if not connection.links:
            return
        random, client = self.random, connection.client
        link, mode, says = random.choice(connection.links)
        if isinstance(link, Receiver):
            came = [each for each in client.history if each.name == "transfer" and each.get("handle") == link.theirs]
            credit, drain = random.choice([0, 1, 10, 300]), random.random() < 0.1
            at = (link.count + len(came)) & 0xFFFF_FFFF
            client.flow(handle=link.handle, delivery_count=at, link_credit=credit, drain=drain)
            return
        for _ in range(random.choice([1, 3, 12])):
            if link.limit <= link.sent:
                try:
                    link.wait_for_credit(timeout_s=0.05)
                except AmqpOneError:
                    return
            # RabbitMQ ends a session that sends a settled message on a link announced as unsettled. Artemis accepts it.
            settled = mode == 1 or (random.random() < 0.5 and (mode != 0 or isinstance(self.broker.broker, Artemis)))
            number = link.send(message(b"x", to=self.address if says else None), settled=settled)
            if settled:
                connection.settled += 1
            else:
                connection.unsettled.append((link, number))

    # --- Ends -------------------------------------------------------------------------------------

    def _detach(self, connection: Connection) -> None:
        if connection.links:
            link, *_ = connection.links.pop(self.random.randrange(len(connection.links)))
            self._wait_for_outcomes(connection)
            link.detach()

    def _wait_for_outcomes(self, connection: Connection) -> None:
        for sender, number in connection.unsettled:
            sender.outcome(number, timeout_s=20)

    def _end(self, connection: Connection) -> None:
        if connection.ended:
            return
        connection.ended = True
        random, client = self.random, connection.client
        how = random.choice(["close", "end", "fin", "reset", "operator"])
        if how in {"close", "end"}:
            self._wait_for_outcomes(connection)
        if how == "end":
            client.send(say(0, "end"))
            client.expect("end", timeout_s=20)
        if how in {"close", "end"}:
            client.close()
        elif how == "fin":
            client._socket.shutdown(socket.SHUT_WR)
            time.sleep(0.3)
            client.abort()
        elif how == "reset":
            client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client._socket.close()
        else:
            host, port = client._socket.getsockname()
            ask(self.sluice, "DELETE", f"connections/{self._id_of(f'{host}:{port}')}")
            client.abort()
        accepted, rejected = connection.known()
        self.least += accepted + (connection.settled if how in {"close", "end", "fin"} else 0)
        self.most += connection.settled + len(connection.unsettled) - rejected

    def _id_of(self, peer: str) -> int:
        for _ in range(100):
            rows = ask(self.sluice, "GET", f"connections?limit=100&search={peer}")[1]["rows"]
            for row in rows:
                if row["peer"] == peer:
                    return int(row["id"])
            time.sleep(0.1)
        raise AssertionError(peer)


def _go(seed: int, broker: OneBroker, sluice: Sluice) -> None:
    for what in ("delayed", "refused", "taken"):
        Run(seed, broker, sluice, what).go()


_QUICK: Final = [0]
_MORE: Final = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 75)]


@pytest.mark.parametrize("seed", [*_QUICK, *_MORE])
def test_nothing_that_clients_do_gets_past_a_limit(seed: int, one_broker: OneBroker, sluice: Sluice) -> None:
    """Four seeds at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as together:
        for each in [together.submit(_go, seed * _AT_ONCE + part, one_broker, sluice) for part in range(_AT_ONCE)]:
            each.result()
