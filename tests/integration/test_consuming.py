"""Real push consumers under a limit on their consumption, and after its removal."""

import re
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from harness.clients import cpp, java, node, run_client
from harness.rocketmq import RocketMQ

from admin.config.sources import Flags, load
from admin.run.composition import Plan, compose
from proxy.datapath.datapath import LocalDataPath

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_LIMITED_S = 20
# At first, each queue is pulled before its content is known, and the limit has stored a second.
_SET_ASIDE_S = 3
_TIMEOUT_S = 90


class _Subscription(NamedTuple):
    """A consumer group and its topic, with more messages than the limit admits in the time."""

    group: str
    messages: int
    per_s: int

    @property
    def topic(self) -> str:
        return f"waiting-for-{self.group}"

    @property
    def limit(self) -> str:
        return f"subscription:{self.group}@{self.topic}={self.per_s}/s"

    def arguments(self, rocketmq: RocketMQ) -> tuple[str, ...]:
        return rocketmq.namesrv, self.group, self.topic, str(self.messages), str(_TIMEOUT_S)


_JAVA = _Subscription("java", 5000, 100)
_CPP = _Subscription("cpp", 2500, 50)
_NODE = _Subscription("node", 2500, 50)
_ALL = (_JAVA, _CPP, _NODE)


def _plan(rocketmq: RocketMQ) -> Plan:
    """Return a sidecar where the clients of a broker look for it."""
    ports = (rocketmq.port, rocketmq.vip_port)
    flags = Flags(
        listen=[f"{rocketmq.advertised_host}:{port}" for port in ports],
        broker=[f"{rocketmq.host}:{port}" for port in ports],
        protocol="rocketmq",
        limits=[subscription.limit for subscription in _ALL],
    )
    return compose(load(None, {}, flags))


def _errors_in_the_logs(home: Path) -> list[str]:
    """Return the ERROR lines of a Java client's logs."""
    logs = list(home.rglob("*.log"))
    assert logs
    lines = [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if re.search(r"\bERROR\b", line)]


async def test_push_consumers_keep_to_the_limit_and_resume_when_it_is_gone(
    slow_rocketmq: RocketMQ, client_home: Path, nursery: trio.Nursery
) -> None:
    for subscription in _ALL:
        slow_rocketmq.fill(subscription.topic, subscription.messages)
    plan = _plan(slow_rocketmq)
    path = LocalDataPath(plan.data_path_config())
    await nursery.start(path.run)
    commands = {
        _JAVA: java("TimedConsumer.java", *_JAVA.arguments(slow_rocketmq), home=client_home / "java"),
        _CPP: cpp("timed_consumer.py", *_CPP.arguments(slow_rocketmq)),
        _NODE: node("timed_consumer.js", *_NODE.arguments(slow_rocketmq)),
    }
    times_ms: dict[_Subscription, list[int]] = {}

    async def consume(subscription: _Subscription) -> None:
        home = client_home / subscription.group
        run = partial(run_client, commands[subscription], home=home, seconds=_TIMEOUT_S)
        report = await trio.to_thread.run_sync(run)
        assert report["again"] == 0
        times_ms[subscription] = report["times_ms"]

    async with trio.open_nursery() as running:
        # The slowest to start goes first, so that the others do not run out of messages.
        for subscription in _ALL:
            running.start_soon(consume, subscription)
            await _until_consuming(path, subscription)
        await trio.sleep(_SET_ASIDE_S + _LIMITED_S)
        removed_ms = time.time() * 1000
        await path.apply(plan.rule_set.replace(rules=()))

    rules = (await path.snapshot()).rules
    nursery.cancel_scope.cancel()
    for subscription in _ALL:
        per_s, times = subscription.per_s, times_ms[subscription]
        limited = _between(times, removed_ms - _LIMITED_S * 1000, removed_ms)
        left = _between(times, removed_ms, removed_ms + _TIMEOUT_S * 1000)
        at_once = _between(times, removed_ms, removed_ms + 2000)
        seconds = [_between(times, removed_ms + 1000 * s, removed_ms + 1000 * (s + 1)) for s in range(-_LIMITED_S, 0)]
        print(f"{subscription.group}: {limited} in {_LIMITED_S} s, by the second {seconds}")
        print(f"{subscription.group}: without the limit {at_once} of the last {left} within 2 s")
        assert len(times) == subscription.messages
        # Messages arrive a pull at a time, so one pull more or less may fall into these seconds.
        assert abs(limited - per_s * _LIMITED_S) <= per_s * _LIMITED_S / 10
        assert at_once >= min(left, 10 * 2 * per_s)
        refused = [counts for name, counts in rules.items() if subscription.topic in name and counts.requests["refuse"]]
        assert refused == []
    assert _errors_in_the_logs(client_home / "java") == []


def _between(times_ms: list[int], begin_ms: float, end_ms: float) -> int:
    return sum(begin_ms <= each < end_ms for each in times_ms)


async def _until_consuming(path: LocalDataPath, subscription: _Subscription) -> None:
    """Wait for the first messages."""
    resource = "subscription", f"{subscription.group}@{subscription.topic}"
    with trio.fail_after(_TIMEOUT_S):
        while True:
            counts = (await path.snapshot()).resources.get(resource)
            if counts is not None and counts.messages["pass"]:
                return
            await trio.sleep(0.1)
