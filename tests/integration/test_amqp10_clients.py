"""Unchanged AMQP 1.0 clients at a limit: throughput, outcomes, and stored messages."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.clients import amqp_one_client, run_client
from harness.one_broker import OneBroker
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_CLIENTS = ("proton", "rabbitmq", "rhea", "java", "go")
_LIMITS = """
[[limits]]
kind = "queue"
name = "limited-*"
rate = 500
burst_s = 0.2

[[limits]]
kind = "queue"
name = "shared-*"
rate = 1000
burst_s = 0.5

[[limits]]
kind = "queue"
name = "refused-*"
rate = 100
action = "reject"

[[limits]]
kind = "queue"
name = "small-*"
bytes_per_s = 4000
max_debt_s = 1
rate = "unlimited"

[[limits]]
kind = "delivery"
name = "slow-*"
rate = 100
burst_s = 0.1
"""
_SECONDS = 20
_ALONE_S = 7
_PACED_PER_S = 300
# 500 a second. The bucket holds 100.
_LIMITED_PER_S = range(475, 521)


@pytest.fixture(scope="module")
def broker(one_broker: OneBroker) -> OneBroker:
    return one_broker


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, broker: OneBroker) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", broker.address)
    return start_sluice(routes=(route,), protocol="amqp10", config=_LIMITS, covered=False)


def _run(client: str, address: str, home: Path, *links: dict[str, Any], seconds: float = 0, **how: Any) -> Any:
    host, _, port = address.rpartition(":")
    command = [*amqp_one_client(client), host, port, json.dumps({"links": links, **how})]
    return run_client(command, home=home, seconds=seconds)


def _per_s(counts: Sequence[int], *, first: int, last: int) -> float:
    return sum(counts[first:last]) / (last - first)


def _check_stored(broker: OneBroker, address: str, report: Any) -> None:
    """The stored messages are the accepted ones, once and in order."""
    lost = {*report["rejected"], *report["released"]}
    accepted = [number for number in range(report["sent"]) if number not in lost]
    assert sum(report["accepted"]) == len(accepted)
    assert [int(body.split(b" ", 1)[0]) for body in broker.take_all(address)] == accepted


def _no_errors(*reports: Any) -> None:
    for report in reports:
        shown = {key: value for key, value in report.items() if key not in {"accepted", "numbers", "received"}}
        assert report["error"] == "", shown
        assert not report.get("rejected"), shown
        assert not report.get("released"), shown


@pytest.mark.rabbitmq4
@pytest.mark.long
@pytest.mark.parametrize("client", _CLIENTS)
def test_limited_link_keeps_its_limit_and_the_other_of_its_session_its_speed(
    client: str, rabbitmq4: RabbitMQ, start_sluice: StartSluice, client_home: Path
) -> None:
    broker = OneBroker(rabbitmq4)
    limited, free = broker.queue(f"limited-{client}"), broker.queue(f"free-{client}")
    alone = {"publish": free, "seconds": _ALONE_S, "outstanding": 4}
    route = Route(f"127.0.0.1:{free_port()}", broker.address)
    with start_sluice(routes=(route,), protocol="amqp10", config=_LIMITS, covered=False) as sluice:

        def run(*links: dict[str, Any]) -> Any:
            return _run(client, route.listen, client_home, *links, seconds=_SECONDS)

        before = run(alone)
        broker.take_all(free)
        told = run({"publish": limited, "seconds": _SECONDS}, {**alone, "seconds": _SECONDS})
        metrics = sluice.metrics()
        _check_stored(broker, limited, told[0])
        _check_stored(broker, free, told[1])
        after = run(alone)
        paced = {**alone, "per_s": _PACED_PER_S, "outstanding": 50}
        paced_alone = run(paced)
        paced_beside = run({"publish": limited, "seconds": _ALONE_S}, paced)
    _no_errors(*before, *told, *after, *paced_alone, *paced_beside)

    speeds = [_per_s(report[-1]["accepted"], first=1, last=_ALONE_S) for report in (before, after)]
    beside = _per_s(told[1]["accepted"], first=1, last=_SECONDS)
    paced_speeds = [_per_s(report[-1]["accepted"], first=1, last=_ALONE_S) for report in (paced_alone, paced_beside)]
    limited_per_s = sum(told[0]["accepted"][:_SECONDS]) / _SECONDS
    print(client, f"limited {limited_per_s:.1f}, free {speeds} beside {beside:.1f}, paced {paced_speeds}")
    assert int(limited_per_s) in _LIMITED_PER_S
    # A link below the capacity of client and broker is not affected.
    assert paced_speeds[1] >= 0.95 * paced_speeds[0] >= 0.9 * _PACED_PER_S
    # A link at full speed loses no more than the limited messages take. Before and after differ by up to half.
    assert beside + limited_per_s >= 0.95 * min(speeds)
    name = f"limited-{client}"
    assert metrics.total("sluice_messages_total", kind="queue", resource=name, verdict="pass") == told[0]["sent"]
    assert metrics.total("sluice_requests_total", verdict="refuse") == 0


@pytest.mark.long
def test_two_links_of_a_session_one_of_them_limited(broker: OneBroker, sluice: Sluice, client_home: Path) -> None:
    seconds = 4
    for client in broker.clients:
        limited, free = broker.queue(f"limited-two-{client}"), broker.queue(f"free-two-{client}")

        told = _run(
            *(client, sluice.routes[0].listen, client_home),
            *({"publish": limited, "seconds": seconds}, {"publish": free, "seconds": seconds}),
            seconds=seconds,
        )

        _no_errors(*told)
        print(client, told[0]["accepted"], told[1]["accepted"])
        # They connect in the first second. The bucket holds 100.
        assert 0.95 * 500 <= _per_s(told[0]["accepted"], first=1, last=seconds) <= 1.02 * 500 + 100 / (seconds - 1)
        assert sum(told[1]["accepted"]) > 1.5 * sum(told[0]["accepted"])
        _check_stored(broker, limited, told[0])
        _check_stored(broker, free, told[1])


@pytest.mark.long
def test_settled_messages_keep_the_limit_without_a_loss(broker: OneBroker, sluice: Sluice, client_home: Path) -> None:
    seconds = 3
    for client in sorted({*broker.clients} & {"proton", "rhea", "go"}):
        limited = broker.queue(f"limited-settled-{client}")

        (told,) = _run(
            *(client, sluice.routes[0].listen, client_home),
            {"publish": limited, "seconds": seconds, "settled": True},
            seconds=seconds,
        )

        _no_errors(told)
        assert 0.9 * 500 * seconds <= told["sent"] <= 520 * seconds + 100
        assert len(broker.take_all(limited)) == told["sent"]


def test_rejected_transfers_are_reported_to_each_client(broker: OneBroker, sluice: Sluice, client_home: Path) -> None:
    seconds = 3
    for client in broker.clients:
        refused, beside = broker.queue(f"refused-{client}"), broker.queue(f"beside-{client}")

        told = _run(
            *(client, sluice.routes[0].listen, client_home),
            *({"publish": refused, "seconds": seconds}, {"publish": beside, "seconds": seconds}),
            seconds=seconds,
        )

        print(client, told[0]["sent"], told[0]["accepted"], told[0]["reasons"], told[1]["accepted"])
        assert told[0]["error"] == ""
        assert told[0]["released"] == []
        # The client connects in its first second.
        assert 95 * (seconds - 1) <= sum(told[0]["accepted"]) <= 100 * (seconds + 2)
        assert len(told[0]["rejected"]) > 100
        # Java's client does not show the reason of a rejection.
        if client != "java":
            assert any("resource-limit-exceeded" in reason or "SYSTEM_BUSY" in reason for reason in told[0]["reasons"])
        _no_errors(told[1])
        _check_stored(broker, refused, told[0])
        _check_stored(broker, beside, told[1])


@pytest.mark.long
def test_the_refusal_on_an_anonymous_link_names_the_queue(broker: OneBroker, sluice: Sluice, client_home: Path) -> None:
    seconds = 3
    for client in broker.clients:
        limited, free = broker.queue(f"limited-to-{client}"), broker.queue(f"free-to-{client}")

        (told,) = _run(
            *(client, sluice.routes[0].listen, client_home),
            {"publish": "", "to": [limited, free], "seconds": seconds},
            seconds=seconds,
        )

        print(client, told["sent"], told["accepted"], len(told["rejected"]), told["reasons"])
        assert told["error"] == ""
        assert told["released"] == []
        # Every second message is for the limited target.
        assert all(number % 2 == 0 for number in told["rejected"])
        rejected = set(told["rejected"])
        stored = [int(body.split(b" ", 1)[0]) for body in broker.take_all(limited)]
        assert stored == [number for number in range(0, told["sent"], 2) if number not in rejected]
        assert len(stored) <= 520 * (seconds + 1)
        assert len(broker.take_all(free)) == told["sent"] // 2


@pytest.mark.long
def test_message_that_is_too_large_for_its_limit_is_refused(
    broker: OneBroker, sluice: Sluice, client_home: Path
) -> None:
    for client in broker.clients:
        queue = broker.queue(f"small-{client}")

        (small,) = _run(client, sluice.routes[0].listen, client_home, {"publish": queue, "count": 5, "size": 100})
        (large,) = _run(client, sluice.routes[0].listen, client_home, {"publish": queue, "count": 3, "size": 9000})

        _no_errors(small)
        assert large["error"] == ""
        assert sorted(large["rejected"]) == [0, 1, 2], large
        assert len(broker.take_all(queue)) == 5


def test_consuming_link_keeps_its_limit_and_the_other_its_speed(
    broker: OneBroker, sluice: Sluice, client_home: Path
) -> None:
    seconds, count = 4, 1500
    for client in broker.clients:
        slow, free = broker.queue(f"slow-{client}"), broker.queue(f"fast-{client}")
        filling = [{"publish": queue, "count": count} for queue in (slow, free)]
        _no_errors(*_run("proton", broker.address, client_home, *filling))

        told = _run(
            *(client, sluice.routes[0].listen, client_home),
            {"consume": slow, "seconds": seconds, "credit": 50},
            {"consume": free, "count": count, "credit": 50},
            seconds=seconds,
        )

        print(client, told[0]["received"], told[1]["received"])
        assert told[0]["error"] == told[1]["error"] == ""
        assert 90 * (seconds - 1) <= len(told[0]["numbers"]) <= 100 * (seconds + 1) + 10
        assert told[0]["numbers"] == list(range(len(told[0]["numbers"])))
        assert told[1]["numbers"] == list(range(count))
        # Messages delivered and not accepted are available again.
        left = {int(body.split(b" ", 1)[0]) for body in broker.take_all(slow)}
        assert left | set(told[0]["numbers"]) == set(range(count))


@pytest.mark.rabbitmq4
@pytest.mark.long
def test_a_thousand_links_share_a_limit(rabbitmq4: RabbitMQ, start_sluice: StartSluice, client_home: Path) -> None:
    broker, seconds, processes, links = OneBroker(rabbitmq4), 40, 5, 200
    address = broker.queue("shared-thousand")
    route = Route(f"127.0.0.1:{free_port()}", broker.address)
    with (
        start_sluice(routes=(route,), protocol="amqp10", config=_LIMITS, covered=False),
        ThreadPoolExecutor(processes) as pool,
    ):
        link = {"publish": address, "seconds": seconds, "outstanding": 20, "size": 50}
        runs = [
            pool.submit(_run, "rhea", route.listen, client_home / str(n), *[link] * links, seconds=seconds)
            for n in range(processes)
        ]
        reports = [report for run in runs for report in run.result()]
    _no_errors(*reports)
    # From when all have attached, to before the first one ends.
    first, last = 10, seconds - 2
    each = sorted(sum(report["accepted"][first:last]) for report in reports)
    share = 1000 * (last - first) / len(reports)
    print(f"{sum(each) / (last - first):.1f}/s; share {share:g}: {each[0]} to {each[-1]}")
    assert abs(sum(each) / (1000 * (last - first)) - 1) <= 0.01
    assert each[0] >= 0.8 * share
    assert each[-1] <= 1.2 * share
    assert len(broker.take_all(address)) == sum(report["sent"] for report in reports)


@pytest.mark.long
def test_links_that_come_sit_idle_and_go_leave_their_share_to_the_others(
    broker: OneBroker, sluice: Sluice, client_home: Path
) -> None:
    seconds = 8
    address = broker.queue("limited-come-and-go")
    with ThreadPoolExecutor() as pool:
        # One stays, one has sent everything and stays attached, one comes and goes.
        staying = pool.submit(
            *(_run, "proton", sluice.routes[0].listen, client_home / "staying"),
            *({"publish": address, "seconds": seconds}, {"publish": address, "count": 300}),
            seconds=seconds,
        )
        passing = pool.submit(
            *(_run, "rhea", sluice.routes[0].listen, client_home / "passing"),
            {"publish": address, "seconds": 3},
            seconds=3,
        )
        reports = [*staying.result(), *passing.result()]
    print([report["accepted"] for report in reports])
    _no_errors(*reports)
    sent = sum(report["sent"] for report in reports)
    assert 0.9 * 500 * seconds <= sent <= 520 * (seconds + 1)
    # Alone at last, the first gets the whole limit.
    assert _per_s(reports[0]["accepted"], first=seconds - 3, last=seconds - 1) >= 0.94 * 500
    assert sum(reports[1]["accepted"]) == 300
    assert len(broker.take_all(address)) == sent
