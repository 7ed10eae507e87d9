"""The counters of one resource, compared with a model that keeps everything."""

import operator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from limiter.counting.row import HELD, KEPT_S, MAX_SENDERS, N_OUTCOMES, REFUSED, Row, Second
from limiter.rules.resource import Resource

ORDERS = Resource("topic", "orders")
NOTHING = [(0, 0, 0)] * N_OUTCOMES


class Sender:
    """Equal to every other, but not identical."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


SENDERS = [Sender() for _ in range(3)]

amount = st.integers(0, 2**40)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.sampled_from(SENDERS),
            st.integers(0, N_OUTCOMES - 1),
            *(amount, amount, amount),
            st.integers(0, 3),
        ),
        st.tuples(st.just("spend"), st.integers(0, 1), amount | amount.map(operator.neg)),
        st.tuples(st.sampled_from(("begin", "raise")), st.integers(1, 2) | st.integers(KEPT_S - 2, KEPT_S + 3)),
    ),
    max_size=60,
)


def summed(amounts: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(map(sum, zip((0, 0, 0), *outcome, strict=True))) for outcome in zip(NOTHING, *amounts, strict=True)]


def one(outcome: int, *figures: int) -> list[tuple[int, ...]]:
    return [figures if number == outcome else (0, 0, 0) for number in range(N_OUTCOMES)]


@given(steps)
def test_entry_returns_the_recorded_counts(steps: list[tuple[Any, ...]]) -> None:
    row, second = Row(ORDERS), Second(100)
    told: list[tuple[Any, ...]] = []
    before: list[Any] = []
    of_second: list[Any] = []
    spent: dict[tuple[int, int], int] = {}
    given_back = [0, 0]
    for now_ns, (what, *step) in enumerate(steps, 1):
        if what == "add":
            sender, outcome, *figures, answers = step
            row.add(second, now_ns, sender, outcome, *figures, told=answers)
            told.append((sender, outcome, figures[0], answers))
            of_second.append(one(outcome, *figures))
            assert row.seen_ns == now_ns
        elif what == "spend":
            dimension, permits = step
            row.spend(second, dimension, permits)
            assert row.spent_in == second.number
            left = spent.get((dimension, second.number), 0) + permits - given_back[dimension]
            spent[dimension, second.number], given_back[dimension] = max(0, left), max(0, -left)
        elif what == "raise":
            second.number += step[0]
        else:
            before += of_second
            second, told, of_second = Second(second.number + step[0]), [], []
        assert row.totals() == summed(before + of_second)
        for dimension in (0, 1):
            window = [spent.get((dimension, number), -1) for number in range(second.number - KEPT_S, second.number)]
            assert row.used(second.number, dimension) == (window if max(window) >= 0 else None)
        assert len(second.entries) == bool(told)
        for entry in second.entries:
            assert (entry.resource, entry.more) == (ORDERS, False)
            assert entry.amounts() == summed(of_second)
            assert entry.told == sum(answers for *_, answers in told)
            senders = list({id(sender): sender for sender, *_ in told}.values())
            assert [(id(sender), requests, refused) for sender, requests, refused in entry.asked()] == [
                (
                    id(sender),
                    sum(requests for by, outcome, requests, _ in told if by is sender and outcome != HELD),
                    sum(requests for by, outcome, requests, _ in told if by is sender and outcome == REFUSED),
                )
                for sender in senders
            ]


def test_an_entry_stays_unchanged_once_another_second_has_begun() -> None:
    row, first = Row(ORDERS), Second(1)
    row.add(first, 1, SENDERS[0], REFUSED, 2, 3, 4, 1)
    row.add(Second(2), 2, SENDERS[1], REFUSED, 5, 6, 7, 1)
    (entry,) = first.entries
    assert (entry.amounts()[REFUSED], entry.told, entry.asked()) == ((2, 3, 4), 1, [(SENDERS[0], 2, 2)])


def test_senders_beyond_the_bound_are_counted_together() -> None:
    row, second = Row(ORDERS), Second(1)
    senders = [Sender() for _ in range(MAX_SENDERS + 2)]
    for _ in range(2):
        for sender in senders:
            row.add(second, 1, sender, REFUSED, 1, 1, 1)
    (entry,) = second.entries
    asked = entry.asked()
    assert [id(sender) for sender, *_ in asked[:-1]] == [*map(id, senders[:MAX_SENDERS])]
    assert {tuple(figures) for _, *figures in asked[:-1]} == {(2, 2)}
    assert (asked[-1], entry.more) == ((None, 4, 4), True)


def test_rows_share_a_second() -> None:
    second = Second(7)
    rows = [Row(ORDERS), Row(Resource("topic", "bills"))]
    for row in rows + rows:
        row.add(second, 1, SENDERS[0], 0, 1, 1, 1)
    assert [entry.resource for entry in second.entries] == [row.resource for row in rows]
