from collections.abc import Iterable
from itertools import pairwise
from typing import get_args

import pytest

from proxy.flow.credit import Credit, Kind, Stage, State
from proxy.flow.diagnosis import FlowFinding, Survey, cause_of

S = 1_000_000_000
SMALL = Credit(2, 1)
KINDS: tuple[Kind, ...] = get_args(Kind)


@pytest.mark.parametrize(
    ("waiting", "at", "state", "cause"),
    [
        ("connection", "channel", "running", "decoding"),
        ("channel", "resource", "running", "deciding"),
        ("connection", "resource", "running", "deciding"),
        ("resource", "store", "running", "disk"),
        ("resource", "writer", "running", "broker"),
        ("channel", "writer", "running", "broker"),
        ("connection", "writer", "running", "broker"),
        ("resource", "writer", "blocked", "broker_alarm"),
        (None, "writer", "blocked", "broker_alarm"),
        (None, "connection", "blocked", "alarm"),
        ("channel", "resource", "throttled", "limit"),
        ("connection", "channel", "throttled", "limit"),
        (None, "resource", "throttled", "limit"),
        (None, "connection", "throttled", "limit"),
        ("store", "channel", "running", "other"),
    ],
)
def test_cause_follows_from_three_states(waiting: Kind | None, at: Kind, state: State, cause: str) -> None:
    found = cause_of(waiting, at, state)
    assert found is not None
    assert found.name == cause


def diagnose(stages: Iterable[Stage], now_ns: int) -> tuple[FlowFinding, ...]:
    survey = Survey(now_ns)
    for stage in stages:
        survey.add(stage)
    return survey.findings()


def test_no_finding_without_waiting_stages() -> None:
    assert all(cause_of(None, kind, state) is None for kind in KINDS for state in ("running", "flow"))


class Path:
    """A connection with a channel and its next stage, each with credit for two messages."""

    def __init__(self, number: int = 1, writer: Stage | None = None) -> None:
        self.connection = Stage("connection", f"10.0.0.{number}")
        self.channel = Stage("channel", f"10.0.0.{number}/1", SMALL)
        self.resource = Stage("resource", "orders", SMALL)
        self.writer = writer or Stage("writer", "broker:5672", SMALL)
        self.store = Stage("store", "", SMALL)

    def fill(self, *stages: Stage, now_ns: int = 0) -> None:
        """Let each stage use its credit."""
        for sender, follower in pairwise(stages):
            sender.send(follower, sender.credit(follower), now_ns)

    def causes(self, now_ns: int = 0) -> list[str]:
        return [finding.cause for finding in diagnose([self.connection], now_ns)]


def test_waiting_for_a_turn_is_the_least_significant_cause() -> None:
    path = Path()
    decoding = Stage("channel", "decoding")
    path.connection.stall(decoding, 0, on=True)
    assert path.causes() == ["decoding"]
    path.connection.send(path.channel, 1, 0)
    path.channel.send(path.resource, 1, 0)
    path.resource.throttle(0, on=True)
    assert path.causes() == ["limit"]
    path.connection.stall(decoding, S, on=False)
    assert path.causes(S) == ["limit"]
    saturated = Survey(S, is_saturated=True)
    saturated.add(path.connection)
    assert [finding.cause for finding in saturated.findings()] == ["decoding"]


def test_alarm_of_the_broker_is_named_before_anything_waits_for_it() -> None:
    path = Path()
    path.writer.block(0, on=True)
    assert path.causes() == []
    survey = Survey(0)
    survey.add(path.connection, path.writer)
    assert [finding.cause for finding in survey.findings()] == ["broker_alarm"]


def test_channel_that_a_limit_makes_wait_names_the_resource() -> None:
    path = Path()
    path.connection.send(path.channel, 1, 0)
    path.channel.ack(path.connection, 1, 0)
    path.channel.send(path.resource, 1, 0)
    path.resource.ack(path.channel, 1, 0)
    path.resource.throttle(0, on=True)
    assert path.causes() == []
    path.channel.throttle(0, on=True)
    (finding,) = diagnose([path.connection], 0)
    assert finding.text.startswith("The connection waits: a configured limit has been reached (resource orders).")
    path.fill(path.connection, path.channel)
    assert diagnose([path.connection], 0) == (finding,)
    path.resource.throttle(0, on=False)
    assert diagnose([path.connection], S)[0].at == ("channel 10.0.0.1/1",)


def test_a_finding_names_the_wait_and_the_remedy() -> None:
    path = Path()
    path.fill(path.connection, path.channel, path.resource, path.writer)
    (finding,) = diagnose([path.connection], 0)
    assert (finding.connections, finding.at) == (1, ("writer broker:5672",))
    assert finding.text == (
        "The connection waits: the broker, or the connection to it, is slower than the incoming traffic"
        " (writer broker:5672). Check the broker's flow control, disk and queue lengths, then the network to it."
    )


def test_findings_count_connections_the_most_first() -> None:
    paths = [Path(number) for number in range(8)]
    survey = Survey(0)
    for number, path in enumerate(paths):
        if number < 2:
            path.fill(path.connection, path.channel, path.resource, path.writer)
        elif number < 7:
            path.writer.name = f"broker-{number}:5672"
            path.fill(path.connection, path.channel)
        survey.add(path.connection)
    decoding, broker = survey.findings()
    assert (decoding.cause, decoding.connections) == ("decoding", 5)
    assert decoding.at == ("channel 10.0.0.2/1", "channel 10.0.0.3/1", "channel 10.0.0.4/1")
    assert decoding.text.startswith("5 of 8 connections wait: ")
    assert "(channel 10.0.0.2/1, channel 10.0.0.3/1, channel 10.0.0.4/1, …)" in decoding.text
    assert (broker.cause, broker.connections, broker.at) == ("broker", 2, ("writer broker:5672",))
