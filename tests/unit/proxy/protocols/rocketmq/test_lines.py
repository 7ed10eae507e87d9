"""Spooled sends of a connection: kept by their heads, in order, each once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook.frames import (
    ONEWAY,
    end_transaction,
    heartbeat,
    json_frame,
    pull,
    send,
    send_back,
    send_half,
    stored,
)
from playbook.spooling_rig import Connection, Shared, frames_of, headers

from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.buffers import GatherRoom
from proxy.deciding.batch import Side
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.protocols.rocketmq.wire.command import decode

SLOW = Rule("topic", "slow", 10, action="delay", burst_s=0.1, max_delay_s=3600.0, spool=True)
TOPIC = Resource("topic", "slow")


def slow(*opaques: int, body: bytes = b"hello", flag: int = 0) -> bytes:
    return b"".join(send("slow", opaque, body=body, flag=flag) for opaque in opaques)


@pytest.fixture(params=["on trial", "python", "compiled"])
def connect(request: pytest.FixtureRequest) -> Callable[[Shared], Connection]:
    if request.param == "on trial":
        return Connection
    return lambda shared: Connection(shared, on_trial=False, scan=request.param)


class TestOrder:
    def test_everything_is_forwarded_at_the_rate_and_in_order(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(SLOW)
        connection = connect(shared)
        connection.client(slow(*range(50)))
        assert connection.sent == [0]
        assert shared.limits.held.requests == 1
        assert connection.session.in_flight() == 50
        shared.pass_s(1.0)
        assert connection.sent == list(range(11))
        connection.client(slow(*range(50, 60)))
        shared.pass_s(10)
        assert connection.sent == list(range(60))
        assert connection.given[Side.BROKER] == slow(*range(60))
        assert not connection.refused
        assert not connection.writes_watched
        assert not list(connection.session.stages())

    def test_other_requests_of_the_client_pass(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(SLOW)
        connection = connect(shared)
        connection.client(slow(1, 2, 3) + send("free", 4) + heartbeat(5) + pull(6))
        connection.client(slow(7) + send("free", 8) + send_back("g", 9))
        assert connection.sent == [1, 4, 5, 6, 8, 9]
        shared.pass_s(10)
        assert connection.sent == [1, 4, 5, 6, 8, 9, 2, 3, 7]

    def test_requests_over_a_bound_are_spooled(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(replace(SLOW, spool=None), options=RateLimitOptions(max_held_per_connection=3))
        connection = connect(shared)
        connection.client(slow(*range(20)))
        assert shared.limits.held.requests == 4
        shared.pass_s(10)
        assert connection.sent == list(range(20))

    def test_only_spoolable_requests_are_spooled(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(replace(SLOW, spool=False), options=RateLimitOptions(max_held_per_connection=3))
        connection = connect(shared)
        connection.client(slow(*range(20)))
        assert len(connection.refused) == 16

    @given(
        sizes=st.lists(st.sampled_from([1, 60, 700, 3_000, 9_000]), min_size=1, max_size=60),
        cuts=st.lists(st.integers(0, 200_000), max_size=12),
        rate=st.sampled_from([1, 10, 1000]),
        flags=st.lists(st.booleans(), min_size=60, max_size=60),
        waits=st.lists(st.sampled_from([0.0, 0.05, 0.5]), min_size=12, max_size=12),
        compiled=st.booleans(),
    )
    def test_first_in_first_out_and_each_once(
        self,
        sizes: list[int],
        cuts: list[int],
        rate: int,
        flags: list[bool],
        waits: list[float],
        *,
        compiled: bool,
    ) -> None:
        shared = Shared(replace(SLOW, rate_per_s=rate), memory_bytes=8_000)
        connection = Connection(shared, on_trial=False, scan="compiled" if compiled else "python")
        stream = b"".join(
            send("slow", opaque, body=bytes([opaque]) * size, flag=ONEWAY if flags[opaque] else 0)
            for opaque, size in enumerate(sizes)
        )
        edges = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
        for begin, end, wait_s in zip(edges, edges[1:], [*waits, 0], strict=False):
            if begin < end:
                connection.client(stream[begin:end])
            shared.pass_s(wait_s)
        shared.pass_s(2 * len(sizes) / rate + 1)
        assert connection.given[Side.BROKER] == stream
        assert not connection.refused
        assert not shared.disk.runs
        assert shared.limits.held == (0, 0)
        owed = flags[: len(sizes)].count(False)
        assert connection.session.in_flight() == owed
        assert not connection.stage.out_of_credit


class TestRefusals:
    def test_spooled_oneway_is_never_refused(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(replace(SLOW, rate_per_s=0.1, burst_s=10, max_delay_s=60.0))
        connection = connect(shared)
        connection.client(slow(*range(20), flag=ONEWAY))
        shared.pass_s(300)
        assert connection.sent == list(range(20))

    def test_overdue_requests_are_refused_or_forwarded_first(self) -> None:
        shared = Shared(replace(SLOW, rate_per_s=0.01, burst_s=100), max_age_s=30)
        connection = Connection(shared)
        connection.client(slow(0, 1, 2) + slow(3) + slow(4, flag=ONEWAY) + slow(5) + slow(6, flag=ONEWAY))
        shared.pass_s(201)
        assert connection.sent == [0, 1, 2, 4, 6]
        assert connection.refused == [3, 5]
        assert shared.outcome("refuse", "spool:too_old") == 2
        assert shared.spool.figures().too_old_total == 4
        assert not list(connection.session.stages())

    def test_requests_lost_by_the_disk_are_answered_if_known(self) -> None:
        shared = Shared(SLOW, memory_bytes=20_000)
        connection = Connection(shared)
        connection.client(slow(*range(100), body=b"x" * 900))
        assert shared.disk.runs
        for extent, data in list(shared.disk.runs.items())[3:5]:
            shared.disk.runs[extent] = data[:-10] + bytes(10)
        shared.pass_s(30)
        lost = 100 - len(connection.sent)
        assert lost > 0
        assert connection.sent == sorted(connection.sent)
        assert not set(connection.sent) & set(connection.refused)
        assert not list(connection.session.stages())

    @pytest.mark.parametrize("first", [0, 1])
    def test_a_oneway_that_the_disk_has_lost_is_not_answered(self, first: int) -> None:
        shared = Shared(SLOW)
        connection = Connection(shared)
        connection.client(slow(100) + b"".join(slow(each, flag=ONEWAY if each % 2 else 0) for each in range(first, 10)))
        connection.lose(4)
        assert connection.refused == [each for each in range(first, first + 4) if each % 2 == 0]
        assert shared.limits.held.requests == 1
        assert shared.count("dropped") == 4
        shared.pass_s(10)
        assert connection.sent == [100, *range(first + 4, 10)]
        assert shared.count("dropped") == 4
        assert shared.count("admitted") == len(connection.sent)
        assert not list(connection.session.stages())

    # Held oneways that are not spooled are refused.
    @pytest.mark.parametrize(("spool", "first"), [(True, 1), (None, 4)])
    def test_a_held_oneway_passes_at_its_deadline_whatever_the_limit(self, first: int, *, spool: bool | None) -> None:
        rule = replace(SLOW, spool=spool)
        shared = Shared(rule, options=RateLimitOptions(max_held_per_connection=3), max_age_s=30)
        connection = Connection(shared)
        connection.client(slow(*range(8), flag=ONEWAY))
        shared.limits.swap(RuleSet((replace(rule, rate_per_s=0),)), shared.now_ns)
        shared.pass_s(20)
        connection.client(slow(*range(8, 11), flag=ONEWAY))
        shared.pass_s(9.9)
        assert connection.sent == [0]
        assert shared.limits.held.requests > 0
        shared.pass_s(0.2)
        assert connection.sent == [0, *range(first, 8)]
        assert shared.limits.held.requests > 0
        shared.pass_s(20)
        assert connection.sent == [0, *range(first, 11)]
        assert shared.limits.held == (0, 0)
        assert shared.tally.held_requests == 0
        assert shared.count("dropped") == 0
        assert shared.count("admitted", 1) == len(connection.sent)
        assert connection.session.next_tick_ns() is None
        assert not list(connection.session.stages())

    def test_requests_behind_an_overdue_oneway_are_forwarded(self) -> None:
        shared = Shared(SLOW, max_age_s=30)
        connection = Connection(shared)
        connection.client(slow(0) + slow(1, flag=ONEWAY))
        shared.limits.swap(RuleSet((replace(SLOW, rate_per_s=0),)), shared.now_ns)
        shared.pass_s(20)
        connection.client(slow(2))
        assert not connection.refused
        shared.pass_s(11)
        assert connection.sent == [0, 1]
        assert connection.refused == [2]
        assert shared.count("dropped") == 0

    def test_a_oneway_past_its_deadline_is_forwarded_once_it_is_complete(self) -> None:
        shared = Shared(SLOW, max_age_s=30)
        connection = Connection(shared)
        big = slow(2, body=b"x" * 1000, flag=ONEWAY)
        connection.client(slow(1) + big[:600])
        shared.limits.swap(RuleSet((replace(SLOW, rate_per_s=0),)), shared.now_ns)
        shared.pass_s(31)
        assert connection.given[Side.BROKER] == slow(1)
        connection.client(big[600:])
        shared.pass_s(1)
        assert connection.given[Side.BROKER] == slow(1) + big

    def test_the_rest_of_a_refused_head_is_swallowed(self) -> None:
        shared = Shared(SLOW)
        connection = Connection(shared)
        big = slow(2, body=b"x" * 1000)
        connection.client(slow(1) + big[:600])
        shared.limits.swap(RuleSet((replace(SLOW, rate_per_s=0),)), shared.now_ns)
        shared.pass_s(1)
        assert connection.refused == [2]
        connection.client(big[600:] + heartbeat(3))
        assert connection.sent == [1, 3]


class TestTransactions:
    def test_incomplete_ends_are_undone(self) -> None:
        ends = Rule("transaction", "producers", 1, action="delay", max_delay_s=3600.0, spool=True)
        shared = Shared(ends)
        connection = Connection(shared)
        connection.client(b"".join(send_half("a", opaque) for opaque in range(5)))
        connection.broker(b"".join(stored(opaque, 70 + opaque, transaction=f"t{opaque}") for opaque in range(5)))
        hub = connection.session._requests._transactions
        connection.client(b"".join(end_transaction(70 + number, opaque=10 + number, flag=0) for number in range(5)))
        assert len(hub) == 0
        connection.close()
        assert len(hub) == 4


class TestRoom:
    """Room for incomplete frames."""

    BIG = slow(2, body=b"x" * 1_000_000)

    @pytest.mark.parametrize("first", [b"", slow(5)])
    @pytest.mark.parametrize("flag", [0, ONEWAY])
    def test_requests_without_room_are_refused_and_dropped(self, first: bytes, flag: int) -> None:
        shared = Shared(SLOW)
        shared.room = GatherRoom(400_000)
        connection = Connection(shared)
        big = slow(2, body=b"x" * 1_000_000, flag=flag)
        stream = slow(1) + first + big + slow(3)
        for at in range(0, len(stream), 50_000):
            connection.client(stream[at : at + 50_000])
        assert connection.refused == ([] if flag else [2])
        assert shared.room.taken_bytes == 0
        assert connection.session._requests.held.size_bytes == 0
        shared.pass_s(10)
        assert connection.given[Side.BROKER] == slow(1) + first + slow(3)
        assert shared.limits.held == (0, 0)
        assert connection.session.between_frames(Side.CLIENT)

    def test_room_is_given_back_when_all_has_come_or_its_turn_has(self) -> None:
        shared = Shared(SLOW)
        connection = Connection(shared)
        connection.client(slow(1) + self.BIG[:500_000])
        assert shared.room.taken_bytes > 0
        shared.pass_s(1)
        assert shared.room.taken_bytes == 0
        connection.client(self.BIG[500_000:])
        connection.client(slow(3, 4) + self.BIG[:500_000])
        connection.client(self.BIG[500_000:])
        assert shared.room.taken_bytes == 0
        connection.client(self.BIG[:500_000])
        connection.close()
        assert shared.room.taken_bytes == 0

    def test_a_head_that_has_lost_its_room_is_refused_when_its_turn_comes(self) -> None:
        shared = Shared(SLOW)
        shared.room = GatherRoom(1_000_000)
        connection = Connection(shared)
        connection.client(slow(1) + self.BIG[:500_000])
        (gathering,) = shared.room._gatherings
        shared.room.give_back(gathering)
        gathering.lost = True
        assert gathering.lose is not None
        gathering.lose()
        assert connection.session._requests.held.size_bytes == 0
        shared.pass_s(1)
        assert connection.refused == [2]
        connection.client(self.BIG[500_000:] + slow(3))
        shared.pass_s(1)
        assert connection.sent == [1, 3]


class TestPurge:
    def test_purge_answers_or_drops_all_spooled_requests(self) -> None:
        shared = Shared(SLOW, replace(SLOW, pattern="late"))
        connection = Connection(shared)
        connection.client(slow(0, 1, 2) + slow(3, flag=ONEWAY) + slow(4) + send("late", 5) + send("late", 6))
        assert connection.session.purge(Resource("topic", "other"), shared.now_ns) == (0, 0)
        assert connection.session.purge(TOPIC, shared.now_ns) == (3, 1)
        assert connection.session.purge(TOPIC, shared.now_ns) == (0, 0)
        connection.write()
        assert connection.refused == [1, 2, 4]
        (remark, *_) = {header["remark"] for header in headers(connection.given[Side.CLIENT])}
        assert remark == "an operator purged the message from Sluice's spool"
        assert shared.limits.held.requests == 1
        shared.pass_s(10)
        connection.client(slow(7))
        assert connection.sent == [0, 5, 6, 7]

    def test_spooled_requests_on_disk_are_purged_when_read(self) -> None:
        shared = Shared(SLOW, memory_bytes=20_000)
        connection = Connection(shared)
        connection.client(slow(*range(200), body=b"x" * 900))
        assert connection.session.purge(TOPIC, shared.now_ns) == (199, 0)
        assert connection.session.purge(TOPIC, shared.now_ns) == (0, 0)
        connection.write()
        assert 0 < len(connection.refused) < 199
        connection.client(slow(300))
        assert connection.session.purge(TOPIC, shared.now_ns) == (1, 0)
        shared.settle()
        connection.write()
        assert connection.refused == [*range(1, 200), 300]
        assert not shared.disk.runs
        assert shared.limits.held.requests == 0


class TestEnds:
    def test_oneways_are_forwarded_after_their_client_has_gone(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(replace(SLOW, max_delay_s=2.0))
        connection = connect(shared)
        connection.client(b"".join(slow(opaque, flag=ONEWAY if opaque % 2 else 0) for opaque in range(100)))
        assert connection.gone()
        shared.pass_s(100)
        assert connection.sent == [0, *range(1, 100, 2)]
        assert shared.count("admitted") == 51
        assert not connection.session.has_undelivered(Side.CLIENT)
        assert not connection.refused

    def test_a_client_that_has_gone_leaves_its_groups_at_once(self, connect: Callable[[Shared], Connection]) -> None:
        shared = Shared(SLOW)
        connection = connect(shared)
        groups = {"producerDataSet": [{"groupName": "p"}], "consumerDataSet": [{"groupName": "c"}, {"groupName": "d"}]}
        for opaque, client in enumerate(("one", "one", "two")):
            connection.client(heartbeat(opaque, body=json.dumps({"clientID": client, **groups}).encode()))
        left = {"clientID": "two", "consumerGroup": "c"}
        connection.client(json_frame(35, left, opaque=9) + slow(11, 12, flag=ONEWAY))
        sent = len(connection.given[Side.BROKER])
        assert connection.gone()
        shared.pass_s(0)
        asked = [decode(each) for each in frames_of(connection.given[Side.BROKER][sent:])]
        assert [each.code for each in asked] == [35] * 5
        assert {each.flag for each in asked} == {ONEWAY}
        told = {tuple(each.fields.items()) for each in asked}
        ones = {
            (("clientID", "one"), (f"{kind}Group", group))
            for kind, group in (("producer", "p"), ("consumer", "c"), ("consumer", "d"))
        }
        assert told == ones | {
            (("clientID", "two"), ("producerGroup", "p")),
            (("clientID", "two"), ("consumerGroup", "d")),
        }
        shared.pass_s(10)
        assert connection.sent[-1] == 12

    def test_answerable_requests_of_a_departed_client_are_dropped(
        self, connect: Callable[[Shared], Connection]
    ) -> None:
        shared = Shared(SLOW)
        connection = connect(shared)
        connection.client(slow(*range(100)))
        assert not connection.gone()
        shared.pass_s(100)
        assert connection.sent == [0]
        assert connection.session.in_flight() == 1
        assert connection.lost + 1 == 99
        assert shared.limits.held == (0, 0)

    @pytest.mark.parametrize(
        "chunk",
        [
            slow(*range(10), flag=ONEWAY) + send("free", 11, body=b"x" * 1000)[:500],
            slow(1) + slow(2, body=b"x" * 1000, flag=ONEWAY)[:500],
        ],
        ids=["forwarded", "spooled"],
    )
    def test_nothing_is_kept_of_a_client_that_left_within_a_frame(self, chunk: bytes) -> None:
        connection = Connection(Shared(SLOW))
        connection.client(chunk)
        assert not connection.gone()

    def test_a_closed_connection_leaves_nothing(self) -> None:
        shared = Shared(SLOW, memory_bytes=20_000)
        connection = Connection(shared)
        connection.client(slow(*range(100), body=b"x" * 900))
        connection.close()
        shared.settle()
        assert not shared.disk.runs
        assert not shared.spool._queues
        assert shared.limits.held == (0, 0)
        assert not connection.stage.followers()
        assert connection.lost + 1 == 99


class TestCredit:
    def test_no_decisions_while_the_writer_is_full(self) -> None:
        shared = Shared(replace(SLOW, rate_per_s=1000, burst_s=1))
        connection = Connection(shared)
        connection.client(slow(*range(3000)))
        before = len(connection.sent)
        connection.slow = True
        shared.pass_s(10)
        # An earlier write ends.
        connection.session.written(Side.BROKER, shared.now_ns)
        shared.pass_s(10)
        connection.slow = False
        connection.write()
        went = len(connection.sent) - before
        assert 400 <= went < 400 + 64
        shared.pass_s(10)
        assert connection.sent == list(range(3000))

    def test_memory_and_disk_that_are_short_stop_the_connection(self) -> None:
        shared = Shared(replace(SLOW, rate_per_s=1), memory_bytes=20_000)
        connection = Connection(shared)
        opaque = 0
        real, shared.disk.finish_all = shared.disk.finish_all, lambda: None  # type: ignore[method-assign]
        while not connection.stage.out_of_credit:
            connection.client(slow(*range(opaque, opaque + 50), body=b"x" * 900))
            opaque += 50
            assert opaque < 10_000
        assert connection.session.paused(Side.CLIENT)
        assert not connection.session.paused(Side.BROKER)
        assert not connection.woken
        shared.disk.finish_all = real  # type: ignore[method-assign]
        shared.settle()
        shared.spool.tick(shared.now_ns)
        assert not connection.stage.out_of_credit
        assert not connection.session.paused(Side.CLIENT)

    def test_client_without_spool_credit_is_paused_until_the_disk_has_written(self) -> None:
        shared = Shared(replace(SLOW, rate_per_s=1), memory_bytes=20_000)
        connection, other = Connection(shared), Connection(shared, 2)
        real, shared.disk.finish_all = shared.disk.finish_all, lambda: None  # type: ignore[method-assign]
        connection.client(slow(*range(40), body=b"x" * 900))
        assert connection.session.paused(Side.CLIENT)
        assert not other.session.paused(Side.CLIENT)
        connection.client(send("free", 1, body=b"x" * 1000)[:500])
        assert not connection.session.paused(Side.CLIENT)
        connection.woken = False
        shared.disk.finish_all = real  # type: ignore[method-assign]
        shared.disk.finish_all()
        shared.spool.tick(shared.now_ns)
        assert connection.woken
