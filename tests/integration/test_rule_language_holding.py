"""Rules that hold: frames through a sidecar to the embedded broker."""

import re
import signal
import time
from collections.abc import Iterator

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, send_back, sends, spend_ten, stored
from harness.sidecar import Sluice, StartSluice

pytestmark = pytest.mark.integration

_SYSTEM_BUSY = 2
_MAX_HELD = 32

_RULES = f"""
grace_s = 4.0

[[limits]]
kind = "topic"
name = "steady*"
rate = 20
burst_s = 2
action = "delay"
max_delay_s = 30

[[limits]]
kind = "topic"
name = "never*"
rate = 0.01
burst_s = 1000
action = "delay"
max_delay_s = 3600
spool = false

[[limits]]
kind = "topic"
name = "too-long"
rate = 0.01
burst_s = 1000
action = "delay"
max_delay_s = 2

[[limits]]
kind = "topic"
name = "a-while"
rate = 0.2
burst_s = 5
action = "delay"
max_delay_s = 10

[[limits]]
kind = "producer_group"
name = "also-delayed"
rate = 0.01
burst_s = 1000
max_debt_s = 3600
action = "delay"
max_delay_s = 3600

[[limits]]
kind = "retry_group"
name = "*"
rate = 10
burst_s = 2

[[handlers]]
name = "rate_limit"

[handlers.options]
max_held_per_connection = {_MAX_HELD}
"""


def _start(start_sluice: StartSluice, broker: EmbeddedBroker) -> Sluice:
    return start_sluice(routes=(broker.route(),), config=_RULES)


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with _start(start_sluice, broker) as sluice:
        yield sluice


def _wait_until_held(sidecar: Sluice, count: int) -> None:
    sidecar.wait_for_metrics(lambda metrics: metrics.total("sluice_held_requests") == count)


def test_held_requests_are_released_in_order_at_the_limits_rate(client: FrameClient, sidecar: Sluice) -> None:
    def of_the_rule(count: str) -> float:
        return sidecar.metrics().total(f"sluice_rule_{count}_total", rule="topic:steady*")

    requests, held_before = sends(70, "steady"), of_the_rule("held")
    begun_s = time.monotonic()

    answers = client.ask(*requests)

    assert stored(answers) == 70 <= 20 * (time.monotonic() - begun_s) + 40 + 1
    assert [answer.opaque for answer in answers] == [request.opaque for request in requests]
    assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(70))
    assert 1 <= of_the_rule("held") - held_before <= 30
    assert of_the_rule("refused") == 0


def test_new_requests_queue_behind_held_ones(client: FrameClient, sidecar: Sluice) -> None:
    first, second = sends(50, "steady-for-two"), sends(10, "steady-for-two")
    client.write(*first)

    with FrameClient(sidecar.routes[0].listen) as newcomer:
        offsets_of_second = [int(answer.fields["queueOffset"]) for answer in newcomer.ask(*second)]
    offsets_of_first = [int(answer.fields["queueOffset"]) for answer in client.read(50)]

    assert sorted(offsets_of_first + offsets_of_second) == list(range(60))
    assert offsets_of_first == sorted(offsets_of_first)
    assert offsets_of_second == sorted(offsets_of_second)


def test_request_behind_held_ones_passes_them(client: FrameClient, sidecar: Sluice) -> None:
    _wait_until_held(sidecar, 0)
    spend_ten(client, "never-passed")

    client.write(*sends(5, "never-passed"), free := send("free"))
    (answer,) = client.read_until_answered(free)

    assert stored([answer]) == 1
    assert sidecar.metrics().total("sluice_held_requests") == 5


def test_request_that_would_wait_too_long_is_refused_at_once(client: FrameClient, sidecar: Sluice) -> None:
    spend_ten(client, "too-long")

    answers = client.ask(*sends(15, "too-long"))

    assert len(refused(answers)) == 15
    assert re.fullmatch(
        r"\[RateLimit\] for too-long need wait:\d+microsecs, rule topic:too-long", refused(answers)[0].remark
    )
    assert sidecar.metrics().total("sluice_rule_held_total", rule="topic:too-long") == 0


@pytest.mark.long
def test_held_request_is_refused_at_its_deadline(client: FrameClient, sidecar: Sluice) -> None:
    assert stored(client.ask(send("a-while", group="also-delayed", batch=2))) == 1

    # The topic's next permit is five seconds away. Meanwhile others overdraw the rest of the group's permits.
    held = send("a-while", group="also-delayed")
    passed, busy = client.ask(held, send("free", group="also-delayed", batch=20))

    assert passed.code == 0
    assert busy.opaque == held.opaque
    assert busy.code == _SYSTEM_BUSY
    assert busy.remark.startswith("[RateLimit] for producer group also-delayed need wait:")
    assert sidecar.metrics().total("sluice_rule_held_total", rule="topic:a-while") == 1
    assert sidecar.metrics().total("sluice_rule_refused_total", rule="producer_group:also-delayed") == 1


def test_held_request_is_dropped_when_its_client_leaves(
    client: FrameClient, sidecar: Sluice, broker: EmbeddedBroker
) -> None:
    _wait_until_held(sidecar, 0)
    spend_ten(client, "never-dropped")
    client.write(*sends(9, "never-dropped"), free := send("free"))
    client.read_until_answered(free)
    metrics = sidecar.metrics()
    assert metrics.total("sluice_held_requests") == 9
    assert metrics.total("sluice_held_bytes") > 100 * 9

    client.close()

    _wait_until_held(sidecar, 0)
    metrics = sidecar.metrics()
    assert metrics.total("sluice_held_bytes") == 0
    assert metrics.total("sluice_requests_total", resource="never-dropped", verdict="drop") == 9
    assert broker.stored("never-dropped") == 11


def test_requests_over_the_bound_are_refused_and_counted(client: FrameClient, sidecar: Sluice) -> None:
    _wait_until_held(sidecar, 0)
    before = sidecar.metrics().total("sluice_hold_refused_total", bound="max_held_per_connection")

    spend_ten(client, "never-so-many")
    client.write(*sends(_MAX_HELD + 25, "never-so-many"))
    answers = client.read(25)

    assert len(refused(answers)) == 25
    metrics = sidecar.metrics()
    assert metrics.total("sluice_hold_refused_total", bound="max_held_per_connection") - before == 25
    assert metrics.total("sluice_held_requests") == _MAX_HELD


def test_send_backs_are_held_by_default(client: FrameClient, sidecar: Sluice) -> None:
    answers = client.ask(*(send_back("returns") for _ in range(30)))

    assert refused(answers) == []
    metrics = sidecar.metrics()
    assert metrics.total("sluice_requests_total", kind="retry_group", resource="returns", verdict="pass") == 30
    assert 1 <= metrics.total("sluice_rule_held_total", rule="retry_group:*") <= 10


def test_sigterm_answers_all_that_is_held(start_sluice: StartSluice, broker: EmbeddedBroker) -> None:
    sidecar = _start(start_sluice, broker)
    steady, never = sends(50, "steady-at-the-end"), sends(20, "never-at-the-end")
    with FrameClient(sidecar.routes[0].listen) as client:
        client.write(*steady, *never, free := send("free"))
        answers = client.read_until_answered(free)
        assert len(answers) <= 50 + 11 + 1

        sidecar.process.signal(signal.SIGTERM)
        answers += client.read_to_end()

    assert sidecar.process.wait(timeout_s=60) == 0
    by_opaque = {answer.opaque: answer for answer in answers}
    assert len(answers) == len(by_opaque) == 50 + 20 + 1
    finished, never = ([by_opaque[request.opaque] for request in part] for part in (steady, never))
    assert stored(finished) == 50 == broker.stored("steady-at-the-end")
    assert stored(never) in range(10, 12)
    assert len(refused(never)) == 20 - stored(never)
    assert {answer.code for answer in refused(never)} == {_SYSTEM_BUSY}
