"""What records are made of, when, and that a fault costs no more than the record that could not be made."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import structlog
from log_traffic import rejection_of, second_of, taken

from admin.edits.model import Change
from admin.rejection_log.composer import Composer, LimitsInForce
from admin.rejection_log.files import Figures
from admin.rejection_log.records import AnyRecord
from admin.rejection_log.totals import Minute
from limiter.counting.rejections import Amount, TrafficSecond
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours

#: 2027-01-15 08:00:00 UTC.
MINUTE = 1_800_000_000
RULES = RuleSet((Rule("topic", "orders", 5),))


class Made:
    """A composer and all that it made."""

    def __init__(self, snapshot: Any) -> None:
        self.figures = Figures()
        self.composer = Composer("a", "0123456789ab", max_resources=10, figures=self.figures, now_s=MINUTE)
        self.rules = RULES
        self.all: list[Any] = []
        self._snapshot = snapshot

    def add(self, *seconds: TrafficSecond, now_s: float, **more: Any) -> list[Any]:
        """Return the records of a call, without those of rules."""
        with structlog.testing.capture_logs() as self.logged:
            lines = self.composer.compose(seconds, self.rules, now_s, **{"snapshot": self._snapshot, **more})
        for _, line in lines:
            assert (line.endswith(b"\n"), line.count(b"\n")) == (True, 1)
        records: list[Any] = [msgspec.json.decode(line, type=AnyRecord) for _, line in lines]
        assert [type_ for type_, _ in lines] == [record.__struct_config__.tag for record in records]
        self.all += records
        return [record for record, (type_, _) in zip(records, lines, strict=True) if type_ != "limit"]

    def of(self, type_: str) -> list[Any]:
        return [record for record in self.all if record.__struct_config__.tag == type_]


@pytest.fixture
def made(data_path: Any) -> Made:
    return Made(data_path.snapshot_now)


def tags(records: list[Any]) -> list[str]:
    return [record.__struct_config__.tag for record in records]


def failing_for(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def fail(*arguments: Any, **more: Any) -> Any:
        if any(name in str(argument) for argument in arguments):
            raise RuntimeError(name)
        return call(*arguments, **more)

    return fail


def test_refusals_are_written_at_once_and_traffic_every_ten_seconds_by_a_heartbeat(made: Made) -> None:
    assert tags(made.add(taken(MINUTE), now_s=MINUTE + 1)) == ["rejection"]
    assert tags(made.add(taken(MINUTE + 9, refused=3, other=4), now_s=MINUTE + 9.9)) == ["rejection"]
    traffic, beat = made.add(now_s=MINUTE + 10.02)
    assert (traffic.at_s, traffic.second, traffic.rate_per_s, traffic.rule) == (MINUTE, (0, 9), 5, "topic:orders")
    assert (traffic.admitted, traffic.refused) == (Amount(4, 8, 400), Amount(4, 4, 4))
    assert (beat.at_s, beat.seconds, beat.other, beat.connections) == (MINUTE, 10, 4, 12)
    assert tags(made.add(taken(MINUTE + 10), now_s=MINUTE + 19)) == ["rejection"]
    traffic, beat = made.add(now_s=MINUTE + 20)
    assert (traffic.at_s, traffic.second, traffic.clients, beat.at_s) == (MINUTE, (10,), 1, MINUTE + 10)
    assert tags(made.add(now_s=MINUTE + 30)) == ["heartbeat"]
    assert [record.n for record in made.all] == list(range(1, len(made.all) + 1))
    assert made.figures.other_runs == 4


def test_traffic_belongs_to_its_minute_and_what_comes_late_too(made: Made) -> None:
    made.add(now_s=MINUTE + 55)
    seconds = taken(MINUTE + 59), taken(MINUTE + 60)
    found = made.add(*seconds, now_s=MINUTE + 61)
    assert tags(found) == ["rejection", "traffic", "heartbeat", "rejection"]
    assert (found[1].at_s, found[1].second, found[2].at_s, found[2].seconds) == (MINUTE, (59,), MINUTE + 50, 10)
    traffic, beat = made.add(now_s=MINUTE + 70)
    assert (traffic.at_s, traffic.second, beat.at_s) == (MINUTE + 60, (0,), MINUTE + 60)


def test_the_last_records_say_that_the_run_ends(made: Made) -> None:
    made.composer.killed = ("f" * 12, 7)
    rejection, traffic, beat = made.add(taken(MINUTE + 3), now_s=MINUTE + 3.5, last=True)
    assert (rejection.at_s, traffic.second) == (MINUTE + 3, (3,))
    assert (beat.ends, beat.seconds, beat.killed_run, beat.killed_n) == (True, 4, "f" * 12, 7)


def test_only_the_first_heartbeat_names_a_run_that_was_killed(made: Made) -> None:
    made.composer.killed = ("f" * 12, 7)
    made.add(now_s=MINUTE + 10)
    made.add(now_s=MINUTE + 20)
    assert [(beat.killed_run, beat.killed_n) for beat in made.of("heartbeat")] == [("f" * 12, 7), ("", 0)]


def test_bypassed_requests_are_those_since_the_last_heartbeat(made: Made) -> None:
    bypassed = {("rate_limit", "late"): 3}
    snapshot = msgspec.structs.replace(made._snapshot, bypassed=bypassed)
    made.composer.begin(MINUTE, snapshot)
    made.add(now_s=MINUTE + 10, snapshot=snapshot)
    snapshot = msgspec.structs.replace(made._snapshot, bypassed={("rate_limit", "late"): 5})
    made.add(now_s=MINUTE + 20, snapshot=snapshot)
    assert [beat.bypassed_requests for beat in made.of("heartbeat")] == [{}, {"rate_limit/late": 2}]


def test_a_clock_that_is_set_loses_nothing(made: Made) -> None:
    made.add(taken(MINUTE), now_s=MINUTE + 1)
    made.add(taken(MINUTE - 3601, stepped_s=-3602), now_s=MINUTE - 3600)
    assert [entry["by_s"] for entry in made.logged] == [-3602]
    made.add(taken(MINUTE, stepped_s=3600), now_s=MINUTE + 1)
    made.add(now_s=MINUTE + 2, last=True)
    assert sum(record.admitted.requests for record in made.of("traffic")) == 6
    assert [record.at_s for record in made.of("traffic")] == [MINUTE, MINUTE - 3660, MINUTE]
    assert [(beat.at_s, beat.seconds) for beat in made.of("heartbeat")][:2] == [(MINUTE, 1), (MINUTE - 3601, 1)]
    assert made.figures.clock_steps == 2


def test_rules_are_told_at_the_start_with_each_new_day_and_when_that_was_lost(made: Made) -> None:
    for now_s, again, count in ((1, False, 1), (2, False, 1), (86_400, False, 2), (86_401, True, 3)):
        made.add(now_s=MINUTE + now_s, limits_again=again)
        assert len(made.of("limit")) == count
    limit = made.of("limit")[0]
    assert (limit.kind, limit.name, limit.rule, limit.rate_per_s) == ("topic", "orders", "topic:orders", 5)


def test_limits_are_those_at_the_end_and_looked_at_only_when_they_change(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.rules = RuleSet(
        (Rule("topic", "orders", 1, hours=read_hours("08:01-09:00", [], "UTC")), Rule("topic", "orders", 5))
    )
    looked: list[datetime] = []
    at = RuleSet.at

    def counted(self: RuleSet, moment: datetime) -> RuleSet:
        looked.append(moment)
        return at(self, moment)

    monkeypatch.setattr(RuleSet, "at", counted)
    for offset in range(60):
        made.add(taken(MINUTE + offset), now_s=MINUTE + offset + 0.5)
    assert looked == [datetime.fromtimestamp(MINUTE + 0.5, UTC)]
    made.add(taken(MINUTE + 60), now_s=MINUTE + 61)
    made.add(now_s=MINUTE + 70)
    assert [record.rate_per_s for record in made.of("traffic")] == [5, 5, 5, 5, 5, 1, 1]
    # The clock is set back to before the hours.
    made.add(taken(MINUTE), now_s=MINUTE + 1)
    made.rules = RuleSet((Rule("topic", "orders", 7),)).replace()
    made.add(taken(MINUTE + 1), now_s=MINUTE + 2, last=True)
    assert (len(looked), made.of("traffic")[-1].rate_per_s) == (4, 7)


@pytest.mark.parametrize(
    ("owner", "method", "told", "kept"),
    [
        (Composer, "_rejection", "rejection", (["a"], ["a", "bad"])),
        (Composer, "_traffic", "traffic", (["a", "bad"], ["a"])),
        (Minute, "add", "traffic", (["a", "bad"], ["a"])),
    ],
)
def test_a_record_that_cannot_be_made_costs_itself_and_is_told_once(
    made: Made, monkeypatch: pytest.MonkeyPatch, *, owner: Any, method: str, told: str, kept: Any
) -> None:
    monkeypatch.setattr(owner, method, failing_for("bad", getattr(owner, method)))
    made.add(taken(MINUTE, "a", "bad"), now_s=MINUTE + 10)
    assert [(entry["of"], entry["error"]) for entry in made.logged] == [(told, "RuntimeError('bad')")]
    names = [record.name for record in made.of("rejection")], [record.name for record in made.of("traffic")]
    assert (names, made.figures.lost) == (kept, {"fault": 1})
    made.add(taken(MINUTE + 10, "bad"), now_s=MINUTE + 20)
    assert (made.logged, made.of("heartbeat")[-1].lost_records) == ([], 2)


def test_a_rule_set_that_cannot_be_read_leaves_the_limits_as_they_were(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add(taken(MINUTE), now_s=MINUTE + 1)
    made.rules = RuleSet((Rule("topic", "orders", 7),)).replace()
    monkeypatch.setattr(RuleSet, "at", failing_for("", RuleSet.at))
    made.add(taken(MINUTE + 1), now_s=MINUTE + 10)
    assert [entry["of"] for entry in made.logged] == ["limit"]
    assert [(record.rate_per_s, record.admitted.requests) for record in made.of("traffic")] == [(5, 4)]


def test_without_a_snapshot_traffic_is_written_without_a_heartbeat(made: Made) -> None:
    assert tags(made.add(taken(MINUTE), now_s=MINUTE + 10, snapshot=None)) == ["rejection", "traffic"]


def test_what_is_as_by_default_is_not_written(made: Made) -> None:
    second = TrafficSecond(MINUTE, (second_of(refused=1),), (), 0)
    lines = made.composer.compose([second], RULES, MINUTE + 10)
    written = msgspec.json.decode(dict(lines)["traffic"])
    unwritten = {"admitted", "held", "burst_s", "bytes_burst_s", "count", "action", "bytes_per_s", "more_clients"}
    assert not {*unwritten, "repeated", "identified", "second_repeated"} & set(written)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"target": "limits/topic/a/b", "old": {"rate": 5}, "new": {"rate": 7.5}}, ("topic", "a/b", 5.0, 7.5)),
        ({"target": "limits/total/topic:x*", "new": {"rate": "unlimited"}}, ("total", "topic:x*", None, None)),
        ({"target": "switches/all", "old": {"limiting": True}, "new": {"limiting": False}}, ("all", "", None, None)),
        ({"target": "configuration", "action": "reload"}, ("", "", None, None)),
    ],
)
def test_a_change_is_told_with_the_rates_before_and_after(
    made: Made, fields: dict[str, Any], expected: tuple[object, ...]
) -> None:
    at = "2026-11-21T12:00:00.500Z"
    change = Change(**{"id": 7, "at": at, "by": "alice", "address": "", "action": "set", "reason": "more", **fields})
    purge = msgspec.structs.replace(change, action="purge")
    (record,) = made.add(now_s=MINUTE, changes=[purge, change])
    assert (record.kind, record.name, record.rate_before_per_s, record.rate_after_per_s) == expected
    assert (record.change_id, record.by, record.reason, record.at_s) == (7, "alice", "more", 1_795_262_400)


def test_names_that_utf_8_cannot_hold_are_written_all_the_same(made: Made) -> None:
    (record,) = made.add(TrafficSecond(MINUTE, (), (rejection_of("a\udcffb\n"),), 0), now_s=MINUTE)
    assert record.name == "a?b\n"


def test_limits_are_those_in_force_and_switches_make_them_off() -> None:
    rules = RuleSet((Rule("topic", "orders", 5), Rule("topic", "x*", None, bytes_per_s=9, count="requests")))
    limits = LimitsInForce(rules)
    assert limits.of(Resource("topic", "orders")) == {"rule": "topic:orders", "rate_per_s": 5, "break_s": 1.0}
    of_pattern = {"rule": "topic:x*", "bytes_per_s": 9, "break_s": 1.0, "count": "requests"}
    assert limits.of(Resource("topic", "xy")) == of_pattern
    assert limits.of(Resource("topic", "nobody's")) == limits.of(Resource("topic", "_other")) == {}
    off = LimitsInForce(rules.replace(off_kinds=["topic"])).of(Resource("topic", "orders"))
    assert (off["action"], off["rate_per_s"]) == ("off", 5)
    assert LimitsInForce(rules.replace(enabled=False)).of(Resource("topic", "orders"))["action"] == "off"


def test_rules_are_those_for_resources_and_of_the_built_in_ones_only_defaults() -> None:
    rules = (
        Rule("topic", "orders", 5),
        Rule("topic", "free", None, exempt=True),
        Rule("topic", "*", 9, shared=True),
        Rule("client", "10.0.0.1", 9),
        Rule("topic", "RMQ_SYS_*", None, exempt=True, source="built-in"),
        Rule("topic", "*", 2000, source="built-in"),
    )
    names = [rule.name for rule, _ in LimitsInForce(RuleSet(rules)).of_rules()]
    assert names == ["topic:orders", "topic:free", "topic:*"]
