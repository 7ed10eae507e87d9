"""Messages of an earlier process: marked, and sent on the next connection."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from harness.wire_bytes import encode_batch
from hypothesis import given
from hypothesis import strategies as st
from playbook.frames import ONEWAY, binary_frame, frame, heartbeat, json_frame, send, send_back
from playbook.spooling_rig import Connection, Shared, frames_of

from limiter.rules.rule import Rule
from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.batch_body import BatchMessage, decode_properties
from proxy.protocols.rocketmq.replayed import mark_replayed
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode
from proxy.spool.spool import Hooks, Spool, SpoolSettings

SLOW = Rule("topic", "slow", 10, action="delay", burst_s=0.1, max_delay_s=3600.0, spool=True)
V1 = {"producerGroup": "g", "topic": "slow", "queueId": "0", "sysFlag": "0", "batch": "false"}
V2 = {"a": "g", "b": "slow", "e": "0", "f": "0", "m": "false"}
TEXT = st.text(st.characters(max_codepoint=127, exclude_characters="\x01\x02"), max_size=20)


def properties_of(command: RemotingCommand) -> dict[str, str]:
    return decode_properties(command.fields["properties" if command.code in {10, 324} else "i"])


class TestMark:
    @pytest.mark.parametrize("code", [10, 310, 324, 325])
    @pytest.mark.parametrize("make", [json_frame, binary_frame])
    @pytest.mark.parametrize("properties", [None, "", "A\x01b\x02", "A\x01b\x02C\x01ü"])
    def test_the_property_is_added_and_all_else_stays(
        self, code: int, make: Callable[..., bytes], properties: str | None
    ) -> None:
        fields = dict(V1 if code in {10, 324} else V2)
        if properties is not None:
            fields["properties" if code in {10, 324} else "i"] = properties
        before = make(code, fields, opaque=7, flag=ONEWAY, body=b"body")
        marked = decode(mark_replayed(before))
        had = decode_properties(properties or "")
        assert properties_of(marked) == {**had, "SLUICE_REPLAYED": "true"}
        first = decode(before)
        assert (marked.code, marked.opaque, marked.flag, marked.body, marked.header_type) == (
            *(first.code, first.opaque, first.flag, first.body, first.header_type),
        )
        places = {"properties", "i"}
        assert {key: value for key, value in marked.fields.items() if key not in places} == {
            key: value for key, value in first.fields.items() if key not in places
        }
        assert mark_replayed(mark_replayed(before)) == mark_replayed(before)

    @given(fields=st.dictionaries(TEXT.filter(lambda name: name not in {"Signature", *V2}), TEXT), binary=st.booleans())
    def test_fields_may_be_any(self, fields: Mapping[str, str], *, binary: bool) -> None:
        before = (binary_frame if binary else json_frame)(310, {**fields, **V2})
        marked = decode(mark_replayed(before))
        assert properties_of(marked)["SLUICE_REPLAYED"] == "true"
        assert {**marked.fields, "i": ""} == {**fields, **V2, "i": ""}

    def test_each_message_of_a_batch_is_marked(self) -> None:
        body = encode_batch([BatchMessage(b"one", "A\x01b\x02", 3), BatchMessage(b"two")])
        marked = decode(mark_replayed(json_frame(320, {**V2, "m": "true"}, body=body)))
        assert marked.body == encode_batch(
            [
                BatchMessage(b"one", "A\x01b\x02SLUICE_REPLAYED\x01true\x02", 3),
                BatchMessage(b"two", "SLUICE_REPLAYED\x01true\x02"),
            ]
        )

    @pytest.mark.parametrize(
        "whole",
        [
            send_back("g", flag=ONEWAY),
            heartbeat(),
            json_frame(310, {**V2, "Signature": "x"}),
            binary_frame(310, {**V2, "Signature": "x"}),
            json_frame(310, {**V2, "i": "A\x01" + "x" * 32_760 + "\x02"}),
            json_frame(320, {**V2, "m": "true"}, body=b"\0" * 30),
            json_frame(10),
            frame(b"[]"),
            frame(b"{", b"body"),
            frame(b"\0", header_type=1),
            frame(binary_frame(310, V2)[8:-1], header_type=1),
            frame(json.dumps({"code": "310"}).encode()),
        ],
    )
    def test_unmarkable_messages_pass_unchanged(self, whole: bytes) -> None:
        assert mark_replayed(whole) == whole

    @given(st.binary(max_size=60), st.integers(0, 2))
    def test_nothing_is_an_error(self, header: bytes, header_type: int) -> None:
        mark_replayed(frame(header, header_type=header_type))


class Real(Shared):
    """With a real spool, whose jobs are done when a test settles."""

    def __init__(self, folder: Path, *rules: Rule) -> None:
        self.folder = folder
        super().__init__(*rules)

    def open_spool(self, **settings: float) -> None:
        del settings
        self.posted: queue.Queue[Callable[[], object]] = queue.Queue()
        nobody: Callable[..., None] = lambda *_: None  # noqa: E731
        self.spool, self.recovered = Spool.open(
            self.folder,
            SpoolSettings(),
            Hooks(nobody, nobody, nobody),
            self.posted.put,
            now_ns=self.now_ns,
            clock_ns=1_700_000_000_000_000_000,
            recover=True,
        )

    def settle(self) -> None:
        while True:
            while self.spool._jobs or self.spool._syncs:
                self.posted.get(timeout=20)()
            woken = [connection for connection in self.connections if connection.woken]
            due_ns = self.limits.holding.next_due_ns()
            if not woken and (due_ns is None or due_ns > self.now_ns):
                return
            for connection in woken:
                connection.tick()
            self.limits.holding.release(self.now_ns)

    def end(self) -> None:
        self.spool.keep()
        for connection in list(self.connections):
            connection.close()
        self.settle()
        self.spool.close()


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Real]:
    """Twenty oneways of an earlier process, among requests with answers."""
    before = Real(tmp_path, SLOW)
    connection = Connection(before)
    connection.client(b"".join(send("slow", opaque, flag=ONEWAY if opaque % 2 else 0) for opaque in range(41)))
    assert connection.sent == [0]
    before.end()
    after = Real(tmp_path, SLOW)
    assert after.recovered.entries == 20
    yield after
    after.end()


def marked(*opaques: int) -> list[bytes]:
    return [mark_replayed(send("slow", opaque, flag=ONEWAY)) for opaque in opaques]


class TestReplay:
    def test_the_next_client_of_the_listener_sends_it_at_the_limit(self, left: Real) -> None:
        connection = Connection(left)
        connection.client(heartbeat(100))
        left.pass_s(0.91)
        given = list(frames_of(connection.given[Side.BROKER]))
        assert given[0] == heartbeat(100)
        assert given[1:] == marked(*range(1, 23, 2))
        assert connection.session.in_flight() == 1
        left.pass_s(2)
        assert list(frames_of(connection.given[Side.BROKER]))[1:] == marked(*range(1, 41, 2))
        assert not list(connection.session.stages())
        assert not left.spool.queues()

    def test_leftovers_go_to_the_next_client(self, left: Real) -> None:
        first, second = Connection(left), Connection(left, 2)
        first.client(heartbeat(100))
        left.pass_s(0.41)
        assert not first.gone()
        sent = list(frames_of(first.given[Side.BROKER]))[1:]
        assert sent == marked(1, 3, 5, 7, 9, 11)
        second.client(heartbeat(101))
        left.pass_s(10)
        assert list(frames_of(second.given[Side.BROKER]))[1:] == marked(*range(13, 41, 2))

    @pytest.mark.parametrize("end", ["client", "broker"])
    def test_returned_entries_are_not_counted(self, left: Real, end: str) -> None:
        connection = Connection(left)
        connection.client(heartbeat(100))
        left.pass_s(0.41)
        assert left.tally.held_requests == 1
        if end == "client":
            connection.gone()
        else:
            connection.close()
        assert left.tally.held_requests == 0
        assert left.limits.held == (0, 0)
        assert left.count("dropped") == 0
