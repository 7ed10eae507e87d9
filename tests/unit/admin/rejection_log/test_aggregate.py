from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from admin.rejection_log.aggregate import MAX_CLIENTS, Aggregate, Traffic
from limiter.counting.rejections import Amount, ResourceSecond
from limiter.rules.resource import Resource

Make = Callable[..., ResourceSecond]
MINUTE = 1_700_000_040
assert MINUTE % 60 == 0


def traffic(minute: Aggregate, name: str = "orders") -> Traffic:
    return dict(minute)[Resource("topic", name)]


def test_seconds_add_up_and_each_is_told_apart(make_second: Make) -> None:
    minute = Aggregate(MINUTE, 10)
    minute.add(MINUTE + 3, make_second(admitted=2, refused=1, identified=1))
    minute.add(MINUTE + 59, make_second(admitted=5, repeated=1))
    of = traffic(minute)
    assert of.amounts() == {"admitted": Amount(7, 14, 700), "refused": Amount(1, 1, 1)}
    assert of.seconds() == [(3, 59), (4, 10), (1, 0), (3, 5), (201, 500), (0, 2)]
    assert (of.repeated, of.identified) == (Amount(1, 2, 100), 1)
    assert of.languages == {"JAVA": (8, 1)}
    assert (of.busy_answers, list(of.clients), of.more_clients) == (1, ["10.0.0.1"], False)


def test_a_second_that_comes_in_parts_or_out_of_order_is_one(make_second: Make) -> None:
    minute = Aggregate(MINUTE, 10)
    for offset in (7, 7, 3, 9, 3):
        minute.add(MINUTE + offset, make_second(admitted=1, repeated=1))
    assert traffic(minute).seconds() == [(3, 7, 9), (4, 4, 2), (0, 0, 0), (2, 2, 1), (200, 200, 100), (4, 4, 2)]


def test_what_shadowed_bypassed_and_exempt_requests_were_reached_the_broker_and_held_ones_count_once() -> None:
    one = Amount(1, 1, 10)
    outcomes: Any = dict.fromkeys(("shadowed", "bypassed", "exempt", "held", "dropped"), one)
    minute = Aggregate(MINUTE, 10)
    minute.add(MINUTE, ResourceSecond(Resource("topic", "orders"), outcomes, 0, {}, (), more_clients=False))
    assert traffic(minute).seconds() == [(0,), (3,), (1,), (4,), (40,), (0,)]


def test_bytes_that_are_charged_later_count_without_a_request() -> None:
    charged: Any = {"admitted": Amount(0, 32, 4096)}
    minute = Aggregate(MINUTE, 10)
    minute.add(MINUTE, ResourceSecond(Resource("subscription", "g@t"), charged, 0, {}, (), more_clients=False))
    ((_, of),) = minute
    assert of.seconds() == [(0,), (32,), (0,), (0,), (4096,), (0,)]


def test_clients_are_counted_up_to_a_bound(make_second: Make) -> None:
    minute = Aggregate(MINUTE, 10)
    names = tuple(map(str, range(MAX_CLIENTS)))
    assert minute.add(MINUTE, make_second(admitted=1, clients=names[:-1]))[1] == names[:-1]
    assert minute.add(MINUTE, make_second(admitted=1, clients=names))[1] == names[-1:]
    assert not traffic(minute).more_clients
    assert minute.add(MINUTE, make_second(admitted=1, clients=("one more",)))[1] == ()
    assert traffic(minute).more_clients
    assert len(traffic(minute).clients) == MAX_CLIENTS


def test_resources_beyond_the_bound_are_counted_together(make_second: Make) -> None:
    minute = Aggregate(MINUTE, 2)
    for number in range(5):
        minute.add(MINUTE, make_second(f"t{number}", admitted=1))
    assert {resource.name for resource, _ in minute} == {"t0", "t1", "_other"}
    assert traffic(minute, "_other").amounts() == {"admitted": Amount(3, 6, 300)}
    assert minute.other == 3


def test_seconds_that_were_recorded_are_counted_once_and_only_those_of_the_minute() -> None:
    minute = Aggregate(MINUTE, 2)
    assert minute.seconds == 0
    minute.cover(MINUTE - 5, MINUTE + 2)
    minute.cover(MINUTE + 1, MINUTE + 3)
    assert minute.seconds == 3
    minute.cover(MINUTE + 58, MINUTE + 100)
    assert minute.seconds == 5
    minute.cover(MINUTE + 10, MINUTE + 5)
    assert minute.seconds == 5


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 9), st.integers(0, 9)), max_size=90))
def test_the_seconds_always_add_up_to_the_amounts(asked: list[tuple[int, int, int]]) -> None:
    of = Traffic()
    for offset, admitted, refused in asked:
        outcomes: Any = {"admitted": Amount(admitted, admitted, admitted), "refused": Amount(refused, refused, refused)}
        again = Amount(refused, refused, refused)
        of.add(offset, ResourceSecond(Resource("topic", "t"), outcomes, 0, {}, (), more_clients=False, repeated=again))
    offsets, *columns = of.seconds()
    assert list(offsets) == sorted({offset for offset, admitted, refused in asked if admitted or refused})
    sums = [sum(admitted for _, admitted, _ in asked), sum(refused for _, _, refused in asked)]
    assert [sum(column) for column in columns] == [*sums, sum(sums), sum(sums), sums[1]]
