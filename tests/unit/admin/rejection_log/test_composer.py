"""The contents and times of records."""

from typing import Any

import msgspec
import pytest
import structlog
from log_traffic import rejection_of, second_of, taken

from admin.edits.model import Change
from admin.rejection_log.composer import MAX_CLIENTS, Composer, Minute
from admin.rejection_log.files import Figures
from admin.rejection_log.records import AnyRecord, LimitFields, Record
from limiter.counting.rejections import Amount, ResourceSecond, TrafficSecond
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours

#: 2027-01-15 08:00:00 UTC.
MINUTE = 1_800_000_000
RULES = RuleSet((Rule("topic", "orders", 5),))
ORDERS_LIMIT = {"rule": "topic:orders", "rate_per_s": 5, "break_s": 1.0}
LIMIT_FIELDS = {field.name for field in msgspec.structs.fields(LimitFields)} - set(Record.__struct_fields__)
LIMIT_FIELDS -= {"kind", "name"}


class Made:
    """A composer and its records."""

    def __init__(self, snapshot: Any) -> None:
        self.figures = Figures()
        self.composer = Composer("a", "0123456789ab", max_resources=10, figures=self.figures, now_s=MINUTE)
        self.rules = RULES
        self.all: list[Any] = []
        self._snapshot = snapshot

    def add(self, *seconds: TrafficSecond, now_s: float, **more: Any) -> list[Any]:
        """Return the records of a call, without those of rules."""
        with structlog.testing.capture_logs() as self.logged:
            lines: list[tuple[str, bytes]] = []
            self.composer.compose(lines, seconds, self.rules, now_s, **{"snapshot": self._snapshot, **more})
        self.written = {type_: msgspec.json.decode(line) for type_, line in lines}
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


def test_traffic_belongs_to_its_minute_even_if_late(made: Made) -> None:
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
    assert [beat.at_s for beat in made.of("heartbeat")][:2] == [MINUTE, MINUTE - 3601]
    assert made.figures.clock_steps == 2


def test_rules_are_written_at_the_start_and_each_day_except_built_in_ones_that_are_not_defaults(
    made: Made,
) -> None:
    made.rules = RuleSet(
        (
            Rule("topic", "orders", 5),
            Rule("topic", "free", None, exempt=True),
            Rule("topic", "*", 9, shared=True),
            Rule("client", "10.0.0.1", 9),
            Rule("topic", "RMQ_SYS_*", None, exempt=True, source="built-in"),
            Rule("topic", "*", 2000, source="built-in"),
        )
    )
    for now_s, count in ((1, 3), (2, 3), (86_400, 6)):
        made.add(now_s=MINUTE + now_s)
        assert len(made.of("limit")) == count
    assert [record.rule for record in made.of("limit")][:3] == ["topic:orders", "topic:free", "topic:*"]
    limit = made.of("limit")[0]
    assert (limit.kind, limit.name, limit.rate_per_s) == ("topic", "orders", 5)


def test_the_limit_is_that_at_the_end_of_the_ten_seconds(made: Made) -> None:
    made.rules = RuleSet(
        (Rule("topic", "orders", 1, hours=read_hours("08:01-09:00", [], "UTC")), Rule("topic", "orders", 5))
    )
    for offset in range(61):
        made.add(taken(MINUTE + offset), now_s=MINUTE + offset + 0.5)
    made.rules = RuleSet((Rule("topic", "orders", 7),))
    made.add(now_s=MINUTE + 70)
    assert [record.rate_per_s for record in made.of("traffic")] == [5, 5, 5, 5, 5, 1, 7]


@pytest.mark.parametrize(
    ("name", "switches", "expected"),
    [
        ("orders", {}, ORDERS_LIMIT),
        ("xy", {}, {"rule": "topic:x*", "bytes_per_s": 9, "break_s": 1.0, "count": "requests"}),
        ("held", {}, {"rule": "topic:held", "rate_per_s": 3, "action": "delay", "max_delay_s": 8.0}),
        ("another", {}, {}),
        ("_other", {}, {}),
        ("orders", {"off_kinds": ["topic"]}, {**ORDERS_LIMIT, "action": "off"}),
        ("orders", {"enabled": False}, {**ORDERS_LIMIT, "action": "off"}),
    ],
)
def test_traffic_has_the_active_limit_without_its_defaults(
    made: Made, name: str, switches: dict[str, Any], expected: dict[str, Any]
) -> None:
    rules = RuleSet(
        (
            Rule("topic", "orders", 5, max_delay_s=9.0),
            Rule("topic", "x*", None, bytes_per_s=9, count="requests"),
            Rule("topic", "held", 3, action="delay", max_delay_s=8.0),
        )
    )
    made.rules = rules.replace(**switches)
    made.add(taken(MINUTE, name), now_s=MINUTE + 10)
    assert {key: value for key, value in made.written["traffic"].items() if key in LIMIT_FIELDS} == expected


def test_a_limit_of_the_fleet_is_marked_with_its_name(made: Made) -> None:
    made.composer = Composer(
        "a", "0123456789ab", max_resources=10, figures=made.figures, now_s=MINUTE, fleet="orders-prod"
    )
    made.rules = RuleSet((Rule("topic", "orders", 5, fleet=True), Rule("topic", "own", 5)))
    made.add(taken(MINUTE), taken(MINUTE + 1, "own"), now_s=MINUTE + 10)
    for type_ in ("rejection", "traffic", "limit"):
        assert {record.name: record.fleet for record in made.of(type_) if record.name != "*"} == {
            "orders": "orders-prod",
            "own": "",
        }
    assert [record.fleet for record in made.of("heartbeat")] == ["orders-prod"]


def test_without_a_snapshot_traffic_is_written_without_a_heartbeat(made: Made) -> None:
    assert tags(made.add(taken(MINUTE), now_s=MINUTE + 10, snapshot=None)) == ["rejection", "traffic"]


def test_defaults_are_not_written(made: Made) -> None:
    made.add(TrafficSecond(MINUTE, (second_of(refused=1),), (), 0), now_s=MINUTE + 10)
    unwritten = {"admitted", "held", "burst_s", "bytes_burst_s", "count", "action", "bytes_per_s", "more_clients"}
    assert not {*unwritten, "repeated", "identified", "second_repeated"} & set(made.written["traffic"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"target": "limits/topic/a/b", "old": {"rate": 5}, "new": {"rate": 7.5}}, ("topic", "a/b", 5.0, 7.5)),
        (
            {
                "target": "limits/topic/a",
                "old": {"rate": 5, "fair_by": "user"},
                "new": {"rate": 5, "fair_by": "client"},
            },
            ("topic", "a", 5.0, 5.0, "user", "client"),
        ),
        (
            {"target": "limits/topic/a", "old": {"rate": 5, "fair_by": "user"}, "old_rule": "topic:*"},
            ("topic", "a", None, None),
        ),
        ({"target": "limits/total/topic:x*", "new": {"rate": "unlimited"}}, ("total", "topic:x*", None, None)),
        ({"target": "switches/all", "old": {"limiting": True}, "new": {"limiting": False}}, ("all", "", None, None)),
        ({"target": "configuration", "action": "reload"}, ("", "", None, None)),
    ],
)
def test_a_change_is_shown_with_the_rates_before_and_after(
    made: Made, fields: dict[str, Any], expected: tuple[object, ...]
) -> None:
    at = "2026-11-21T12:00:00.500Z"
    change = Change(**{"id": 7, "at": at, "by": "alice", "address": "", "action": "set", "reason": "more", **fields})
    purge = msgspec.structs.replace(change, action="purge")
    (record,) = made.add(now_s=MINUTE, changes=[purge, change])
    rates = (record.rate_before_per_s, record.rate_after_per_s)
    shares = (record.fair_by_before, record.fair_by_after)
    assert (record.kind, record.name, *rates, *(shares if any(shares) else ())) == expected
    assert (record.change_id, record.by, record.reason, record.at_s) == (7, "alice", "more", 1_795_262_400)


def test_names_invalid_in_utf_8_are_written_anyway(made: Made) -> None:
    (record,) = made.add(TrafficSecond(MINUTE, (), (rejection_of("a\udcffb\n"),), 0), now_s=MINUTE)
    assert record.name == "a?b\n"


COLUMNS = ("second", "second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated")


def fields_of(minute: Minute) -> dict[str, dict[str, Any]]:
    return {resource.name: fields for resource, fields in minute.take()}


def columns(fields: dict[str, Any]) -> list[tuple[int, ...]]:
    return [fields.get(name, ()) for name in COLUMNS]


def test_seconds_add_up_and_stay_distinct_in_any_order() -> None:
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE + 59, second_of(admitted=5, repeated=1))
    minute.add(MINUTE + 3, second_of(admitted=2, refused=1, identified=1))
    minute.add(MINUTE + 59, second_of(admitted=1))
    fields = fields_of(minute)["orders"]
    assert (fields["admitted"], fields["refused"], "held" in fields) == (Amount(8, 16, 800), Amount(1, 1, 1), False)
    assert columns(fields) == [(3, 59), (4, 12), (1, 0), (3, 6), (201, 600), (0, 2)]
    assert (fields["repeated"], fields["identified"]) == (Amount(1, 2, 100), 1)
    assert (fields["languages"], fields["busy_answers"]) == ({"JAVA": (9, 1)}, 1)
    assert (fields["clients"], fields["more_clients"]) == (1, False)


def test_taken_counts_are_reset_except_clients() -> None:
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, second_of(admitted=5, clients=("a", "b")))
    minute.add(MINUTE, second_of("other", admitted=5))
    assert set(fields_of(minute)) == {"orders", "other"}
    minute.add(MINUTE + 10, second_of(admitted=1, clients=("b", "c")))
    assert fields_of(minute)["orders"]["clients"] == 3
    assert fields_of(minute) == {}


def test_some_outcomes_reached_the_broker_and_held_requests_count_once() -> None:
    one = Amount(1, 1, 10)
    outcomes: Any = dict.fromkeys(("shadowed", "bypassed", "exempt", "held", "dropped"), one)
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, ResourceSecond(Resource("topic", "orders"), outcomes, 0, {}, (), more_clients=False))
    assert columns(fields_of(minute)["orders"]) == [(0,), (3,), (1,), (4,), (40,), ()]


def test_bytes_that_are_charged_later_count_without_a_request() -> None:
    charged: Any = {"admitted": Amount(0, 32, 4096)}
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, ResourceSecond(Resource("subscription", "g@t"), charged, 0, {}, (), more_clients=False))
    assert columns(fields_of(minute)["g@t"]) == [(0,), (32,), (0,), (0,), (4096,), ()]


def test_clients_are_counted_up_to_a_bound() -> None:
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, second_of(admitted=1, clients=tuple(map(str, range(MAX_CLIENTS)))))
    assert not fields_of(minute)["orders"]["more_clients"]
    minute.add(MINUTE, second_of(admitted=1, clients=("0", "one more")))
    fields = fields_of(minute)["orders"]
    assert (fields["clients"], fields["more_clients"]) == (MAX_CLIENTS, True)


def test_resources_beyond_the_bound_of_the_minute_are_counted_together() -> None:
    minute = Minute(MINUTE, 2)
    assert [minute.add(MINUTE, second_of(f"t{number}", admitted=1)) for number in range(5)] == [0, 0, 1, 1, 1]
    found = fields_of(minute)
    assert (set(found), found["_other"]["admitted"]) == ({"t0", "t1", "_other"}, Amount(3, 6, 300))
    assert minute.add(MINUTE, second_of("t9", admitted=1)) == 1
