from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from log_traffic import second_of

from admin.rejection_log.totals import MAX_CLIENTS, Minute, Totals
from limiter.counting.rejections import Amount, ResourceSecond
from limiter.rules.resource import Resource

MINUTE = 1_700_000_040
COLUMNS = ("second", "second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated")


def taken(minute: Minute) -> dict[str, dict[str, Any]]:
    return {resource.name: fields for resource, fields in minute.take()}


def columns(fields: dict[str, Any]) -> list[tuple[int, ...]]:
    return [fields[name] for name in COLUMNS]


def test_seconds_add_up_and_each_is_told_apart_in_whatever_order_they_come() -> None:
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE + 59, second_of(admitted=5, repeated=1))
    minute.add(MINUTE + 3, second_of(admitted=2, refused=1, identified=1))
    minute.add(MINUTE + 59, second_of(admitted=1))
    fields = taken(minute)["orders"]
    assert (fields["admitted"], fields["refused"], "held" in fields) == (Amount(8, 16, 800), Amount(1, 1, 1), False)
    assert columns(fields) == [(3, 59), (4, 12), (1, 0), (3, 6), (201, 600), (0, 2)]
    assert (fields["repeated"], fields["identified"]) == (Amount(1, 2, 100), 1)
    assert (fields["languages"], fields["busy_answers"]) == ({"JAVA": (9, 1)}, 1)
    assert (fields["clients"], fields["more_clients"]) == (1, False)


def test_what_was_taken_is_not_there_again_but_for_its_clients() -> None:
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, second_of(admitted=5, clients=("a", "b")))
    minute.add(MINUTE, second_of("other", admitted=5))
    assert set(taken(minute)) == {"orders", "other"}
    minute.add(MINUTE + 10, second_of(admitted=1, clients=("b", "c")))
    assert taken(minute)["orders"]["clients"] == 3
    assert taken(minute) == {}


def test_some_outcomes_reached_the_broker_and_held_requests_count_once() -> None:
    one = Amount(1, 1, 10)
    outcomes: Any = dict.fromkeys(("shadowed", "bypassed", "exempt", "held", "dropped"), one)
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, ResourceSecond(Resource("topic", "orders"), outcomes, 0, {}, (), more_clients=False))
    assert columns(taken(minute)["orders"]) == [(0,), (3,), (1,), (4,), (40,), ()]


def test_bytes_that_are_charged_later_count_without_a_request() -> None:
    charged: Any = {"admitted": Amount(0, 32, 4096)}
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, ResourceSecond(Resource("subscription", "g@t"), charged, 0, {}, (), more_clients=False))
    assert columns(taken(minute)["g@t"]) == [(0,), (32,), (0,), (0,), (4096,), ()]


def test_clients_are_counted_up_to_a_bound() -> None:
    minute = Minute(MINUTE, 10)
    minute.add(MINUTE, second_of(admitted=1, clients=tuple(map(str, range(MAX_CLIENTS)))))
    assert not taken(minute)["orders"]["more_clients"]
    minute.add(MINUTE, second_of(admitted=1, clients=("0", "one more")))
    fields = taken(minute)["orders"]
    assert (fields["clients"], fields["more_clients"]) == (MAX_CLIENTS, True)


def test_resources_beyond_the_bound_of_the_minute_are_counted_together() -> None:
    minute = Minute(MINUTE, 2)
    assert [minute.add(MINUTE, second_of(f"t{number}", admitted=1)) for number in range(5)] == [0, 0, 1, 1, 1]
    found = taken(minute)
    assert (set(found), found["_other"]["admitted"]) == ({"t0", "t1", "_other"}, Amount(3, 6, 300))
    assert minute.add(MINUTE, second_of("t9", admitted=1)) == 1


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 9), st.integers(0, 9)), max_size=90))
def test_the_seconds_always_add_up_to_the_amounts(asked: list[tuple[int, int, int]]) -> None:
    of = Totals()
    for offset, admitted, refused in asked:
        outcomes: Any = {"admitted": Amount(admitted, admitted, admitted), "refused": Amount(refused, refused, refused)}
        again = Amount(refused, refused, refused)
        of.add(offset, ResourceSecond(Resource("topic", "t"), outcomes, 0, {}, (), more_clients=False, repeated=again))
    offsets, *rest = columns(of.fields())
    assert list(offsets) == sorted({offset for offset, admitted, refused in asked if admitted or refused})
    sums = [sum(admitted for _, admitted, _ in asked), sum(refused for _, _, refused in asked)]
    assert [sum(column) for column in rest] == [*sums, sum(sums), sum(sums), sums[1]]
