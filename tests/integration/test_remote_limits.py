"""Limits read and changed by requests 9002 and 9003, with RocketMQ's own remoting client, in front of both brokers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.clients import java, run_client
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, sends, stored
from harness.rocketmq import RocketMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = pytest.mark.integration

SUCCESS, NOT_SUPPORTED, NO_PERMISSION, INVALID = 0, 3, 16, 29

_CONFIG = """
[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"

[listeners.options]
{options}

[[limits]]
kind = "topic"
name = "shared-out-*"
rate = 700
action = "shadow"

[[limits]]
kind = "retry_group"
name = "billing"
rate = 70
"""
_ALL_OF_THIS_MACHINE = 'remote_update_from = ["127.0.0.0/8"]'

Answers = list[dict[str, Any]]
Ask = Callable[..., Answers]


@pytest.fixture
def ask(client_home: Path) -> Ask:
    """Run the Java tool against an address. ``serialize``: the encoding of its headers."""

    def run(address: str, *what: str, serialize: str = "JSON") -> Answers:
        options = [f"-Drocketmq.serialize.type={serialize}"]
        command = java("RemoteLimits.java", address, *what, home=client_home, options=options)
        answers: Answers = run_client(command, home=client_home, seconds=30)
        return answers

    return run


@pytest.fixture(params=[pytest.param("real", marks=[pytest.mark.long]), "embedded"])
def broker_address(request: pytest.FixtureRequest) -> str:
    """The first send to a topic creates it."""
    if request.param == "embedded":
        embedded: EmbeddedBroker = request.getfixturevalue("broker")
        return embedded.address
    rocketmq: RocketMQ = request.getfixturevalue("rocketmq")
    return f"{rocketmq.host}:{rocketmq.port}"


@pytest.fixture
def start(start_sluice: StartSluice, broker_address: str, listen: str, tmp_path: Path) -> Callable[[str], Sluice]:
    """Starts a sidecar in front of that broker with these listener options, always with the same state."""

    def run(options: str = _ALL_OF_THIS_MACHINE) -> Sluice:
        config = _CONFIG.format(listen=listen, broker=broker_address, options=options)
        running: Sluice = start_sluice(
            routes=(Route(listen, broker_address),), config=config, arguments=("--state-dir", str(tmp_path / "state"))
        )
        return running

    return run


def limits_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["topic"]: each for each in answer["limits"]}


def audit(sluice: Sluice) -> list[dict[str, Any]]:
    """Return the audit trail, latest first."""
    status, text = sluice.get("/api/v1/audit")
    assert status == 200, text
    changes: list[dict[str, Any]] = json.loads(text)["changes"]
    return changes


@pytest.mark.parametrize("serialize", [pytest.param("JSON", marks=pytest.mark.long), "ROCKETMQ"])
def test_limits_are_seen_and_changed_by_an_unchanged_client(
    serialize: str, ask: Ask, start: Callable[[], Sluice], listen: str
) -> None:
    sluice = start()
    seen, changed, retries, sent, later = ask(
        listen,
        *("view", "update=remote-a=0", "update=%RETRY%remote-group=33.5", "send=remote-a", "view"),
        serialize=serialize,
    )
    assert seen["code"] == SUCCESS
    assert limits_of(seen)["%RETRY%billing"]["limitQps"] == 70
    assert "remote-a" not in limits_of(seen)
    assert changed == retries == {"code": SUCCESS}
    assert sent["code"] == 2, "the very next send was to be refused"
    assert sent["remark"].startswith("[RateLimit] for remote-a need wait:")
    limits = limits_of(later)
    assert limits["remote-a"]["limitQps"] == 0
    assert limits["remote-a"]["lastRateLimitTimestamp"] > 1_700_000_000_000
    assert limits["%RETRY%remote-group"]["limitQps"] == 33.5
    assert later["counter"] > seen["counter"]
    explained = sluice.explain(kind="retry_group", name="remote-group")["limits"]
    assert any("33.5" in each["rule"]["limit"] for each in explained)


@pytest.mark.long
def test_change_holds_for_connections_that_were_open_before(ask: Ask, start: Callable[[], Sluice], listen: str) -> None:
    start()
    with FrameClient(listen) as client:
        assert stored(client.ask(*sends(1, "remote-b"))) == 1
        assert ask(listen, "update=remote-b=0") == [{"code": SUCCESS}]
        assert len(refused(client.ask(*sends(3, "remote-b")))) == 3


@pytest.mark.long
def test_a_change_keeps_the_limits_other_fields(ask: Ask, start: Callable[[], Sluice], listen: str) -> None:
    sluice = start()
    assert ask(listen, "update=shared-out-x=0") == [{"code": SUCCESS}]
    (limit,) = sluice.explain(kind="topic", name="shared-out-x")["limits"]
    assert limit["rule"]["action"] == "shadow"
    with FrameClient(listen) as client:
        assert stored(client.ask(*sends(2, "shared-out-x"))) == 2


@pytest.mark.long
def test_change_is_in_the_audit_trail_and_survives_a_restart(
    ask: Ask, start: Callable[[], Sluice], listen: str
) -> None:
    sluice = start()
    assert ask(listen, "update=remote-c=0", "update=%RETRY%remote-c=3") == [{"code": SUCCESS}] * 2
    retries, topic = audit(sluice)[:2]
    assert (topic["by"], topic["target"], topic["action"]) == ("remote", "limits/topic/remote-c", "set")
    assert topic["address"].startswith("127.0.0.1")
    assert topic["new"]["rate"] == 0
    assert (retries["target"], retries["new"]["rate"]) == ("limits/retry_group/remote-c", 3)
    sluice.stop()
    again = start()
    with FrameClient(listen) as client:
        assert len(refused(client.ask(*sends(1, "remote-c")))) == 1
    (seen,) = ask(listen, "view")
    assert limits_of(seen)["remote-c"]["limitQps"] == 0
    assert limits_of(seen)["%RETRY%remote-c"]["limitQps"] == 3
    assert {each["id"] for each in (topic, retries)} <= {each["id"] for each in audit(again)}


def test_a_oneway_change_is_made_and_the_connection_continues(
    ask: Ask, start: Callable[[], Sluice], listen: str
) -> None:
    start()
    # The client may reorder a oneway request and the next one.
    answers = ask(listen, "oneway=remote-d=0", "until=remote-d=0", "update=remote-e=5", "send=remote-d")
    assert [answer["code"] for answer in answers] == [SUCCESS, SUCCESS, 2]
    assert limits_of(answers[0])["remote-d"]["limitQps"] == 0


@pytest.mark.parametrize("serialize", ["JSON", pytest.param("ROCKETMQ", marks=[pytest.mark.long])])
def test_without_permission_nothing_is_changed_or_seen(
    serialize: str, ask: Ask, start: Callable[[str], Sluice], listen: str
) -> None:
    sluice = start('remote_view_from = ["192.0.2.0/24"]')
    seen, changed, sent = ask(listen, "view", "update=remote-f=0", "send=remote-f", serialize=serialize)
    assert seen["code"] == changed["code"] == NO_PERMISSION
    assert "remote_view_from is [192.0.2.0/24]" in seen["remark"]
    assert "remote_update_from is []" in changed["remark"]
    assert sent["code"] == SUCCESS
    assert audit(sluice) == []


@pytest.mark.long
def test_invalid_values_are_refused_with_the_allowed_ones(ask: Ask, start: Callable[[], Sluice], listen: str) -> None:
    sluice = start()
    *answers, sent = ask(
        listen,
        *("update=remote-g=-5", "update=remote-g=NaN", "update=remote-g=1e12", "update=remote-*=0", "update=%RETRY%=5"),
        "send=remote-g",
    )
    assert [answer["code"] for answer in answers] == [INVALID] * 5
    assert all("must be" in answer["remark"] for answer in answers)
    assert sent["code"] == SUCCESS
    assert audit(sluice) == []


@pytest.mark.long
def test_brokers_themselves_know_no_such_requests(ask: Ask, broker_address: str) -> None:
    seen, changed = ask(broker_address, "view", "update=remote-h=0")
    assert (seen["code"], changed["code"]) == (NOT_SUPPORTED, NOT_SUPPORTED)
