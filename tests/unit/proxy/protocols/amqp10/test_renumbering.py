"""Numbers of transfers and deliveries on both sides of a session in which some are swallowed."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.amqp10 import renumbering
from proxy.protocols.amqp10.renumbering import MAX_BREAKS, Renumbering, Transfers, Unsettled

ALL = 0xFFFFFFFF
NEAR_WRAP = [0, 1, 5, 1 << 31, (1 << 31) - 3, ALL, ALL - 1, ALL - 7]


def serial(number: int) -> int:
    return number & ALL


def ids(ranges: list[tuple[int, int]]) -> list[int]:
    listed: list[int] = []
    for first, last in ranges:
        length = serial(last - first)
        assert length < 10_000
        listed += [serial(first + each) for each in range(length + 1)]
    return listed


def numbering(first: int, swallowed: str) -> tuple[Renumbering, dict[int, int]]:
    deliveries = Renumbering()
    forward: dict[int, int] = {}
    here = first
    for at, mark in enumerate(swallowed):
        number = serial(first + at)
        if mark == "x":
            deliveries.swallow(number)
        else:
            assert deliveries.note_received(number) == here
            forward[number] = here
            here = serial(here + 1)
    return deliveries, forward


class TestRenumbering:
    @given(st.sampled_from(NEAR_WRAP), st.text("x.", max_size=40), st.data())
    def test_ranges_are_those_of_a_table(self, first: int, swallowed: str, data: st.DataObject) -> None:
        deliveries, forward = numbering(first, swallowed)
        back = {there: here for here, there in forward.items()}
        for here, there in forward.items():
            assert deliveries.forward_ranges(here, here) == [(there, there)]
        if forward:
            start = data.draw(st.integers(0, len(forward) - 1))
            length = data.draw(st.integers(1, len(forward) - start))
            low = serial(first + start)
            ranges = deliveries.back_ranges(low, serial(low + length - 1))
            assert ids(ranges) == [back[serial(low + each)] for each in range(length)]
        if swallowed:
            start = data.draw(st.integers(0, len(swallowed) - 1))
            length = data.draw(st.integers(1, len(swallowed) - start))
            low = serial(first + start)
            there_ranges = deliveries.forward_ranges(low, serial(low + length - 1))
            wanted = [forward[each] for each in (serial(low + at) for at in range(length)) if each in forward]
            assert ids(there_ranges) == wanted
            assert len(there_ranges) <= 1

    @given(st.sampled_from(NEAR_WRAP), st.integers(0, 2**32), st.integers(1, 300))
    def test_unsettled_ranges_stay_right_after_forgetting(self, first: int, seed: int, steps: int) -> None:
        random = Random(seed)
        deliveries = Renumbering()
        forward: dict[int, int] = {}
        number = here = first
        for _ in range(steps):
            step = random.random()
            if step < 0.3:
                deliveries.swallow(serial(number))
                number += 1
            elif step < 0.7:
                count = random.choice([1, 1, 1, 5])
                settled = random.random() < 0.2
                assert deliveries.note_received(serial(number), count, settled=settled) == serial(here)
                if not settled:
                    forward.update({number + each: here + each for each in range(count)})
                number, here = number + count, here + count
            elif forward:
                some = random.choice(sorted(forward)[: random.choice([1, 100])])
                up_to = some + random.choice([0, 0, 3, 50])
                gone = [each for each in forward if some <= each <= up_to]
                assert deliveries.settled(serial(some), serial(up_to)) == len(gone)
                for each in gone:
                    del forward[each]
            assert deliveries.unsettled == len(forward)
        for each, there in forward.items():
            assert deliveries.forward_ranges(serial(each), serial(each)) == [(serial(there), serial(there))]
            assert deliveries.back_ranges(serial(there), serial(there)) == [(serial(each), serial(each))]
        if forward and not deliveries.plain:
            everything = ids(deliveries.back_ranges(serial(min(forward.values())), serial(here - 1)))
            assert {serial(each) for each in forward} <= set(everything)

    def test_while_nothing_is_swallowed_everything_is_forwarded_unchanged(self) -> None:
        deliveries = Renumbering()
        assert deliveries.note_received(7, 100) == 7
        assert deliveries.plain
        assert deliveries.back_ranges(0, ALL) == [(0, ALL)]
        assert deliveries.forward_ranges(50, 3) == [(50, 3)]

    def test_a_range_of_all_numbers_takes_no_time_and_names_no_delivery_that_was_swallowed(self) -> None:
        deliveries, _ = numbering(0, "..x..")
        assert deliveries.back_ranges(0, ALL) == [(0, 1), (3, 4)]
        assert deliveries.forward_ranges(0, ALL) == [(0, 3)]
        assert deliveries.settled(0, ALL) == 4
        assert deliveries.unsettled == 0

    def test_a_range_that_has_not_arrived_is_none(self) -> None:
        deliveries, _ = numbering(0, "..x..")
        assert deliveries.back_ranges(4, 20) == []
        assert deliveries.back_ranges(3, 20) == [(4, 4)]
        assert deliveries.forward_ranges(2, 2) == []

    def test_breaks_that_nothing_unsettled_is_before_are_forgotten(self) -> None:
        deliveries = Renumbering()
        for at in range(0, 100_000, 2):
            deliveries.swallow(at)
            deliveries.note_received(at + 1)
            deliveries.settled(at + 1, at + 1)
        assert len(deliveries._afters) <= 1
        assert deliveries.note_received(100_000) == 50_000

    def test_breaks_behind_one_that_is_never_settled_are_few(self) -> None:
        deliveries = Renumbering()
        deliveries.note_received(0)
        for at in range(1, 100_001, 2):
            deliveries.swallow(at)
            deliveries.note_received(at + 1)
            deliveries.settled(at + 1, at + 1)
        assert len(deliveries._afters) <= 64
        assert deliveries.back_ranges(0, 0) == [(0, 0)]
        assert deliveries.note_received(100_001) == 50_001

    def test_where_nothing_is_settled_nothing_can_be_swallowed_in_the_end(self) -> None:
        deliveries = Renumbering()
        at = 0
        while not deliveries.full:
            deliveries.swallow(at)
            deliveries.note_received(at + 1)
            at += 2
        assert at == 2 * MAX_BREAKS
        assert len(deliveries.back_ranges(0, MAX_BREAKS - 1)) == MAX_BREAKS
        deliveries.settled(0, MAX_BREAKS)
        assert not deliveries.full
        assert deliveries.back_ranges(MAX_BREAKS - 1, MAX_BREAKS - 1) == [(2 * MAX_BREAKS - 1, 2 * MAX_BREAKS - 1)]

    def test_settling_out_of_order_frees_room(self) -> None:
        deliveries = Renumbering()
        for at in range(0, 2 * MAX_BREAKS, 2):
            deliveries.swallow(at)
            deliveries.note_received(at + 1)
        assert deliveries.full
        for at in range(101, 2 * MAX_BREAKS, 4):
            deliveries.settled(at, at)
        assert not deliveries.full
        assert deliveries.back_ranges(0, 0) == [(1, 1)]

    def test_deliveries_of_links_that_are_gone_are_not_waited_for(self) -> None:
        deliveries, _ = numbering(0, "..x..x.")
        deliveries.forget_unsettled()
        assert deliveries.unsettled == 0
        assert deliveries.note_received(7) == 5

    def test_frames_that_cross_the_last_detach_are_translated(self) -> None:
        deliveries, _ = numbering(0, "..x..x.")
        deliveries.forget_unsettled()
        assert deliveries.back_ranges(1, 4) == [(1, 1), (3, 4), (6, 6)]

    def test_break_bound_is_released_completely(self) -> None:
        deliveries, _ = numbering(0, ".x" * MAX_BREAKS)
        assert deliveries.full
        deliveries.forget_unsettled()
        assert not deliveries.full


class TestUnsettled:
    def test_ascending_ids_are_one_interval(self) -> None:
        unsettled = Unsettled()
        for at in range(1000):
            unsettled.add(at)
        assert len(unsettled._starts) == 1
        assert unsettled.settle(0, 499) == 500
        assert (unsettled.count, unsettled.lowest()) == (500, 500)
        assert unsettled.settle(0, 1 << 40) == 500
        assert (unsettled.count, unsettled.lowest()) == (0, None)

    def test_it_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(renumbering, "MAX_INTERVALS", 4)
        unsettled = Unsettled()
        unsettled.add(0, 100)
        for at in range(1, 100, 2):
            unsettled.settle(at, at)
        assert len(unsettled._starts) == 4
        assert unsettled.lowest() == 0
        assert unsettled.count >= 50
        unsettled.settle(0, 99)
        assert unsettled.count == 0

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 10))))
    def test_it_is_a_set(self, steps: list[tuple[bool, int, int]]) -> None:
        unsettled, plain = Unsettled(), set[int]()
        up_to = 0
        for adds, at, count in steps:
            if adds:
                first = up_to + at % 3
                unsettled.add(first, count)
                plain.update(range(first, first + count))
                up_to = first + count
            else:
                gone = {each for each in plain if at <= each < at + count}
                assert unsettled.settle(at, at + count - 1) == len(gone)
                plain -= gone
            assert unsettled.count == len(plain)
            assert unsettled.lowest() == min(plain, default=None)
            assert unsettled.any_within(at, at + count) == any(at <= each < at + count for each in plain)


class TestTransfers:
    def test_each_peer_sees_its_own_numbers(self) -> None:
        transfers = Transfers()
        transfers.begun(ALL - 1, 1000)
        assert transfers.flow_of_receiver(None, 10) is None
        assert transfers.left() == 10
        transfers.note_received(2)
        transfers.swallowed(3)
        assert transfers.left() == 5
        assert transfers.outgoing_id() == 0
        # Sluice's own flow repeats the receiver's. The window is as before the three.
        assert transfers.incoming_id() == 1
        assert transfers.left() == 8
        assert transfers.flow_of_receiver(0, 10) == 3
        assert transfers.left() == 10
        assert transfers.flow_of_sender(3, 900) == 0
        assert transfers.outgoing_window == 900


def test_aborted_deliveries_do_not_stop_refusals() -> None:
    ids = Renumbering()
    number = 0
    for _ in range(3 * renumbering.MAX_BREAKS):
        assert ids.reserve()
        ids.swallow(number)
        ids.note_received(number + 1)
        ids.aborted(number + 1)
        number += 2
    assert ids.unsettled == 0
    # A late answer also refers to its number.
    ((first, _),) = ids.forward_ranges(number - 1, number - 1)
    assert ids.back_ranges(first, first) == [(number - 1, number - 1)]
    assert ids.settled(number - 1, number - 1) == 1
    assert ids.unsettled == 0
