"""Limits on senders and listeners, and their combinations: frames through a sidecar to the embedded broker."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, sends, spend_ten, stored
from harness.sidecar import Sluice, StartSluice

pytestmark = pytest.mark.integration

_TEN_PASS = range(10, 12)

_LISTENERS = {
    "main": "",
    "first": 'scope = "pair"',
    "second": 'scope = "pair"',
    "with-exempt": 'exempt = ["127.0.9.0/24", "127.0.10.1"]\nmax_connections_per_client = 1',
    "two-each": 'max_connections_per_client = 2\nscope = "two-each"',
    "two-each-vip": 'max_connections_per_client = 2\nscope = "two-each"',
    "narrow": "new_connections_per_s = 5",
}

_RULES = """
[[limits]]
kind = "client"
name = "127.0.1.1"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "client"
name = "127.0.2.0/24"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "client"
name = "127.0.3.0/24"
rate = 0.01
burst_s = 1000
shared = true

[[limits]]
kind = "client"
name = "127.0.4.0/24"
rate = 0.005
burst_s = 1000

[[limits]]
kind = "client"
name = "127.0.4.0/24"
rate = 0.008
burst_s = 1000
shared = true

[[limits]]
kind = "producer_group"
name = "limited"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "producer_group"
name = "flow-control"
rate = 0.01
burst_s = 1000
busy_code = 215

[[limits]]
kind = "listener"
name = "pair"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "topic"
name = "twenty"
rate = 0.02
burst_s = 1000

[[limits]]
kind = "topic"
name = "ten"
rate = 0.01
burst_s = 1000
"""

Connect = Callable[..., FrameClient]


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Iterator[Sluice]:
    with EmbeddedBroker() as broker:
        routes = tuple(broker.route() for _ in _LISTENERS)
        listeners = "\n".join(
            f'[[listeners]]\nname = "{name}"\nlisten = "{route.listen}"\nbroker = "{route.broker}"\n{settings}\n'
            for (name, settings), route in zip(_LISTENERS.items(), routes, strict=True)
        )
        with start_sluice(routes=routes, config=listeners + _RULES) as sluice:
            yield sluice


@pytest.fixture
def connect(sidecar: Sluice) -> Iterator[Connect]:
    addresses = dict(zip(_LISTENERS, (route.listen for route in sidecar.routes), strict=True))
    with ExitStack() as connections:

        def to(listener: str = "main", *, source: str = "") -> FrameClient:
            return connections.enter_context(FrameClient(addresses[listener], source=source))

        yield to


def test_single_address_is_limited_over_all_its_connections(connect: Connect) -> None:
    answers = [
        answer for _ in range(2) for answer in connect(source="127.0.1.1").ask(*sends(8, "free"), *sends(2, "more"))
    ]

    assert stored(answers) in _TEN_PASS
    assert "for client 127.0.1.1 need wait:" in refused(answers)[0].remark
    assert refused(answers)[0].remark.endswith("rule client:127.0.1.1")
    assert stored(connect(source="127.0.1.2").ask(*sends(25, "free"))) == 25


def test_each_address_of_a_network_has_its_own_limit(connect: Connect, sidecar: Sluice) -> None:
    before = sidecar.metrics().total("sluice_rule_refused_total", rule="client:127.0.2.0/24")

    first, second = (connect(source=f"127.0.2.{last}").ask(*sends(25, "free")) for last in (1, 2))

    assert stored(first) in _TEN_PASS
    assert stored(second) in _TEN_PASS
    assert "for client 127.0.2.2 need" in refused(second)[0].remark
    after = sidecar.metrics().total("sluice_rule_refused_total", rule="client:127.0.2.0/24")
    assert after - before == len(refused(first + second))


def test_log_names_rule_and_client_of_a_refusal(connect: Connect, sidecar: Sluice) -> None:
    client = connect(source="127.0.2.21")
    spend_ten(client, "free")

    # One line a second for each rule counts the other refusals.
    while not (lines := [line for line in sidecar.process.lines if "127.0.2.21" in line]):
        assert refused(client.ask(send("free")))

    assert '"event": "limit exceeded; requests refused"' in lines[0]
    assert '"rule": "client:127.0.2.0/24"' in lines[0]


def test_shared_network_has_one_limit_together(connect: Connect) -> None:
    first, second = connect(source="127.0.3.1"), connect(source="127.0.3.2")

    assert stored(first.ask(*sends(6, "free"))) == 6
    answers = second.ask(*sends(25, "free"))

    assert stored(answers) in range(4, 6)
    assert refused(answers)[0].remark.endswith("rule total:client:127.0.3.0/24")


def test_network_may_limit_each_address_and_all_together(connect: Connect) -> None:
    first, second = (connect(source=f"127.0.4.{last}").ask(*sends(7, "free")) for last in (1, 2))

    # Five for each, eight for both.
    assert stored(first) in range(5, 7)
    assert stored(first + second) in range(8, 10)
    assert refused(first)[0].remark.endswith("rule client:127.0.4.0/24")
    assert refused(second)[0].remark.endswith("rule total:client:127.0.4.0/24")


def test_producer_group_is_limited_whatever_it_sends_to(connect: Connect) -> None:
    limited = connect().ask(*sends(10, "free", group="limited"), *sends(10, "more", group="limited"))
    others = connect().ask(*sends(20, "free", group="others"))

    assert stored(limited) in _TEN_PASS
    assert "for producer group limited need wait:" in refused(limited)[0].remark
    assert refused(limited)[0].remark.endswith("rule producer_group:limited")
    assert stored(others) == 20


def test_listeners_of_one_scope_have_one_limit_together(connect: Connect, sidecar: Sluice) -> None:
    first = connect("first", source="127.0.7.1").ask(*sends(6, "free"))
    second = connect("second", source="127.0.7.2").ask(*sends(25, "more"))

    assert stored(first) == 6
    assert stored(first + second) in _TEN_PASS
    assert "for listener pair need wait:" in refused(second)[0].remark
    assert refused(second)[0].remark.endswith("rule listener:pair")
    assert stored(connect("main").ask(*sends(25, "free"))) == 25


def test_refusal_spends_nothing_in_the_limits_that_admit(connect: Connect, sidecar: Sluice) -> None:
    begun_s = time.monotonic()
    # The client's ten stop it. Topic and producer group admit twenty and ten.
    first = connect(source="127.0.2.11").ask(*sends(25, "twenty", group="flow-control"))
    # The group's limit stops it at once. The client is a new one.
    second = connect(source="127.0.2.12").ask(*sends(25, "twenty", group="flow-control"))
    third = connect(source="127.0.2.13").ask(*sends(25, "twenty"))

    explanation = sidecar.explain(
        kind="topic", name="twenty", client="127.0.2.12", producer_group="flow-control", listener="main"
    )
    # Permits accrued meanwhile, at the fastest of the rates.
    back = 0.02 * (time.monotonic() - begun_s)
    left = {limit["rule"]["name"]: limit["state"]["stored_permits"] for limit in explanation["limits"]}
    by_group, by_new_client = stored(first + second), stored(second)
    assert stored(first) in _TEN_PASS
    assert by_group in _TEN_PASS
    assert stored(first + second + third) in range(20, 22)
    assert list(left) == ["topic:twenty", "client:127.0.2.0/24", "producer_group:flow-control"]
    assert left["topic:twenty"] == pytest.approx(20 - by_group - stored(third), abs=back)
    assert left["client:127.0.2.0/24"] == pytest.approx(10 - by_new_client, abs=back)
    assert left["producer_group:flow-control"] == pytest.approx(10 - by_group, abs=back)
    assert (refused(second)[0].code, refused(third)[0].code) == (215, 2)
    assert refused(third)[0].remark.endswith("rule topic:twenty")


@pytest.mark.parametrize("address", ["127.0.9.7", "127.0.10.1"])
def test_exempt_clients_are_limited_by_nothing(connect: Connect, sidecar: Sluice, address: str) -> None:
    before = sidecar.metrics().total("sluice_requests_total", resource="ten", verdict="exempt")

    answers = [
        answer
        for _ in range(2)
        for answer in connect("with-exempt", source=address).ask(*sends(25, "ten", group="limited"))
    ]

    assert stored(answers) == 50
    assert sidecar.metrics().total("sluice_requests_total", resource="ten", verdict="exempt") == before + 50


def test_connections_of_a_client_are_bounded_per_scope(connect: Connect, sidecar: Sluice) -> None:
    for listener in ("two-each", "two-each-vip"):
        assert stored(connect(listener, source="127.0.6.1").ask(send("free"))) == 1

    assert connect("two-each", source="127.0.6.1").read_to_end() == []
    assert connect("two-each-vip", source="127.0.6.1").read_to_end() == []
    assert stored(connect("two-each", source="127.0.6.2").ask(send("free"))) == 1
    # The client sees the end of the stream before the connection is counted as closed.
    sidecar.wait_for_metrics(
        lambda metrics: metrics.total("sluice_connections_closed_total", reason="too_many_connections_of_client") == 2
    )
    assert "max_connections_per_client (2) has been reached for 127.0.6.1" in sidecar.process.wait_for_line(
        "too_many_connections_of_client", timeout_s=60
    )


def test_connection_that_ends_makes_room_for_another(connect: Connect, sidecar: Sluice) -> None:
    def wait_until_open(count: int) -> None:
        sidecar.wait_for_metrics(lambda metrics: metrics.total("sluice_connections", listener="two-each") == count)

    wait_until_open(0)
    clients = [connect("two-each", source="127.0.6.3") for _ in range(2)]
    assert [stored(client.ask(send("free"))) for client in clients] == [1, 1]

    clients[0].close()
    wait_until_open(1)

    assert stored(connect("two-each", source="127.0.6.3").ask(send("free"))) == 1


def test_new_connections_beyond_the_rate_are_closed(connect: Connect, sidecar: Sluice) -> None:
    tried, begun_s = 50, time.monotonic()
    clients = [connect("narrow") for _ in range(tried)]
    # A broker's answer or the end of the connection shows that it was decided.
    served = 0
    for client in clients:
        try:
            served += stored(client.ask(send("free")))
        except ConnectionError:
            client.close()
    most = 5 + 5 * (time.monotonic() - begun_s) + 1

    assert 5 <= served <= most
    sidecar.wait_for_metrics(
        lambda metrics: metrics.total("sluice_connections_closed_total", reason="connection_rate") == tried - served
    )
