"""Transactions: each half message is committed once, however often either side asks."""

from typing import Any

import pytest
from playbook.frames import (
    HALF,
    check_transaction,
    end_transaction,
    frame,
    heartbeat,
    json_frame,
    pull,
    read_body,
    read_header,
    send,
    send_batch,
    send_half,
    stored,
    unparsable,
)
from playbook.playbook import (
    Anything,
    Broker,
    Client,
    End,
    GiveUp,
    Playbook,
    Release,
    ToBroker,
    ToClient,
    Undecided,
    hold,
    refuse,
)
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from limiter.rules.resource import Resource
from proxy.deciding.batch import Side
from proxy.protocols.rocketmq import transactions
from proxy.protocols.rocketmq.answers import MAX_PENDING
from proxy.protocols.rocketmq.transactions import Question, Transactions
from proxy.protocols.rocketmq.wire.command import RemotingCommand

OFFSET = 0x1234567


def begun(**changes: Any) -> Playbook:
    """Return a connection on which a half message was sent and stored."""
    play = Playbook(**changes) >> Client(send_half("orders", 7)) << Anything()
    return play >> Broker(stored(7, OFFSET)) << ToClient(stored(7, OFFSET))


def commits(play: Playbook, offset: int = OFFSET, **changes: Any) -> bool:
    """Say whether a commit is forwarded."""
    before = len(play.given[Side.BROKER])
    whole = end_transaction(offset, **changes)
    play = play >> Client(whole) << Anything()
    gone = play.given[Side.BROKER][before:]
    assert gone in (b"", whole)
    return bool(gone)


def test_half_message_is_committed_once() -> None:
    play = begun()
    assert commits(play)
    assert not commits(play)
    assert not commits(play)
    assert play.refused_by == ["unknown_transaction"] * 2


def test_a_commit_of_an_ordinary_message_is_refused() -> None:
    play = Playbook() >> Client(send("orders", 7)) << Anything() >> Broker(stored(7, OFFSET)) << Anything()
    assert not commits(play)
    assert play.given[Side.CLIENT] == stored(7, OFFSET), "who expects no answer gets none"
    assert not commits(play, opaque=9, flag=0)
    answer = read_header(play.given[Side.CLIENT][len(stored(7, OFFSET)) :])
    assert (answer["code"], answer["opaque"]) == (1, 9)
    assert answer["remark"] == "Find prepared transaction message failed"


@pytest.mark.parametrize("delay", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_delayed_message_is_not_a_half_message(delay: str) -> None:
    half = send_half("orders", 7, **{delay: "1"})
    play = Playbook() >> Client(half) << Anything() >> Broker(stored(7, OFFSET)) << Anything()
    assert not commits(play)


@pytest.mark.parametrize("code", [10, 11, 12])
def test_half_message_whose_replicas_are_late_is_committed(code: int) -> None:
    play = Playbook() >> Client(send_half("orders", 7)) << Anything() >> Broker(stored(7, OFFSET, code=code))
    assert commits(play << Anything())


def test_half_message_that_was_not_stored_is_not_committed() -> None:
    play = Playbook() >> Client(send_half("orders", 7)) << Anything() >> Broker(stored(7, OFFSET, code=2))
    assert not commits(play << Anything())


@pytest.mark.parametrize("wrong", [{"offset": OFFSET + 1}, {"queue_offset": 1}, {"group": "others"}])
def test_wrong_commit_does_not_consume_a_half_message(wrong: dict[str, Any]) -> None:
    play = begun()
    assert not commits(play, **wrong)
    assert commits(play)


@pytest.mark.parametrize("asked", [0, 1, 3])
@pytest.mark.parametrize("before", [(), (0,), (12,), (0, 12), (12, 0, 12)])
def test_a_transaction_is_committed_once_whatever_came_before(before: tuple[int, ...], asked: int) -> None:
    """The broker also stores a message that was rolled back before."""
    for last in range(asked + 1):
        play = begun()
        for copy in range(1, asked + 1):
            play = play >> Broker(check_transaction(OFFSET + copy)) << Anything()
        for offset in range(OFFSET, OFFSET + asked + 1):
            assert all(commits(play, offset, what=what) for what in before)
        assert commits(play, OFFSET + last)
        assert play.requests[-1].resources == (Resource("transaction", "producers"),)
        assert not any(commits(play, offset) for offset in range(OFFSET, OFFSET + asked + 1))
        assert commits(play, what=12), "the broker looks at it itself"


def test_checked_transaction_is_committed_once() -> None:
    play = Playbook() >> Broker(check_transaction(OFFSET, queue_offset=3)) << Anything()
    assert not commits(play)
    assert commits(play, queue_offset=3)
    assert not commits(play, queue_offset=3)


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_one_copy_of_a_half_message_is_committed_whichever_that_is(committed: int) -> None:
    """The broker stores a new copy for each question, to any member of the group, and accepts a commit of any copy."""
    hub = Transactions()
    play, colleague = begun(hub=hub), Playbook(hub=hub)
    for copy in (1, 2):
        colleague = colleague >> Broker(check_transaction(OFFSET + copy)) << Anything()
    assert not commits(play, OFFSET + committed, group="others"), "who ends it is known from the first"
    assert commits(play, OFFSET + committed)
    assert not any(commits(each, OFFSET + copy) for each in (play, colleague) for copy in (0, 1, 2))
    assert not len(hub)


def test_copies_without_an_id_are_charged_to_their_topic() -> None:
    play = Playbook()
    for copy in range(2):
        asked = check_transaction(OFFSET + copy, transaction="")
        play = play >> Broker(asked) << Anything()
        assert commits(play, OFFSET + copy)
        assert play.requests[-1].resources == (Resource("transaction", "producers"), Resource("topic", "orders"))


def test_second_message_of_a_transaction_is_charged_to_its_topic() -> None:
    """The broker processes a commit some seconds late, and may ask in between."""
    play = begun()
    assert commits(play)
    for copy in (1, 2):
        play = play >> Broker(check_transaction(OFFSET + copy)) << Anything()
        assert commits(play, OFFSET + copy)
        assert play.requests[-1].resources == (Resource("transaction", "producers"), Resource("topic", "orders"))


@pytest.mark.parametrize("other", [{"group": "others"}, {"topic": "elsewhere"}])
def test_foreign_transaction_id_affects_nothing_else(other: dict[str, Any]) -> None:
    hub = Transactions()
    play = begun(hub=hub)
    half = send_half(other.get("topic", "orders"), 8, PGROUP=other.get("group", "producers"))
    foreign = Playbook(hub=hub) >> Client(half) << Anything()
    foreign = foreign >> Broker(stored(8, OFFSET + 1)) << Anything() >> Broker(check_transaction(OFFSET + 2, **other))
    foreign = foreign << Anything()
    play = play >> Broker(check_transaction(OFFSET + 3)) << Anything()
    assert commits(play, OFFSET + 3)
    assert play.requests[-1].resources == (Resource("transaction", "producers"),)
    assert commits(foreign, OFFSET + 2, group=other.get("group", "producers"))


@pytest.mark.parametrize("topic", ["orders", "%RETRY%orders"])
def test_commits_of_a_half_message_known_only_from_the_broker_are_charged_after_the_first(topic: str) -> None:
    """To the broker, the property TRAN_MSG makes a half message, whatever the send's flags."""
    half = send(topic, 7, sys_flag="0", properties=HALF)
    play = Playbook() >> Client(half) << Anything() >> Broker(stored(7, OFFSET)) << Anything()
    own, stored_in = (
        Resource("transaction", "producers"),
        Resource("retry_group" if "%" in topic else "topic", "orders"),
    )
    for copy, charged in ((1, (own,)), (2, (own, stored_in)), (3, (own, stored_in))):
        play = play >> Broker(check_transaction(OFFSET + copy, topic=topic)) << Anything()
        assert commits(play, OFFSET + copy)
        assert play.requests[-1].resources == charged


@pytest.mark.parametrize(
    "hosts", [(bytes(8), bytes(8)), (bytes(20), bytes(8)), (bytes(8), bytes(20)), (bytes(20),) * 2]
)
@pytest.mark.parametrize("step_bytes", [1, 7, 100, 1000])
def test_a_question_is_read_in_any_chunks(step_bytes: int, hosts: tuple[bytes, bytes]) -> None:
    asked = check_transaction(OFFSET, group="groups", topic="topics", body=bytes(300), hosts=hosts)
    play = Playbook()
    for at in range(0, len(asked), step_bytes):
        assert not commits(play, group="groups")
        play = play >> Broker(asked[at : at + step_bytes]) << Anything()
    assert not commits(play)
    assert commits(play, group="groups")


@pytest.mark.parametrize("record_bytes", [0, 39, 87, 88, 91])
def test_a_question_without_a_whole_message_is_ignored(record_bytes: int) -> None:
    question = Question(RemotingCommand(code=39, opaque=1))
    question.feed(memoryview(read_body(check_transaction(OFFSET)))[:record_bytes])
    assert question.half() is None


def test_half_message_that_was_held_is_committed() -> None:
    play = Playbook(hold("orders")) >> Client(send_half("orders", 7)) >> Release(0) << ToBroker(send_half("orders", 7))
    assert play.session.in_flight() == 1
    assert commits(play >> Broker(stored(7, OFFSET)) << Anything())
    assert play.session.in_flight() == 0


NOT_NUMBERED = frame(b'{"code":310,"extFields":{"a":"producers","b":"orders"}}')
NUMBERED_ODDLY = [frame(b'{"code":34,"opaque":%b}' % spelled) for spelled in (b'"7"', b"null", b"7.5", b'""')]
# Requests after which the request of an answer with the number 7 is ambiguous.
AMBIGUOUS: dict[str, list[bytes]] = {
    "of two, one is refused whatever the limits are": [send("orders", 7), send("SCHEDULE_TOPIC_XXXX", 7)],
    "of two, a limit refuses one": [send("orders", 7), send("limited", 7)],
    "of two in one chunk, a limit refuses one": [send("orders", 7) + send("limited", 7)],
    "of two in one chunk, the first is refused": [send("limited", 7) + send("orders", 7)],
    "of many, a limit refuses one": [send("orders", number) for number in range(20)] + [send("limited", 7)],
    "one of another kind": [send("orders", 7), heartbeat(7)],
    "one of another kind first": [heartbeat(7) + send("limited", 7)],
    "two of another kind": [heartbeat(7) * 2],
    "one that waits long": [pull(7), pull(7, topic="limited")],
    "one that waits long first": [pull(7), send("orders", 7), send("SCHEDULE_TOPIC_XXXX", 7)],
    "a half message": [send_half("orders", 7), send("limited", 7)],
    "half messages": [send_half("orders", 7) + send_half("limited", 7)],
    "no number": [NOT_NUMBERED],
    "no number, and a header with nothing": [frame(b"{}")],
} | {f"number {at} that only the broker may read so": [whole] for at, whole in enumerate(NUMBERED_ODDLY)}


@pytest.mark.parametrize("chunks", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_plain_message_is_not_treated_as_a_half_message(chunks: list[bytes]) -> None:
    play = Playbook(refuse("limited", "g@limited"), limited={"subscription"})
    for chunk in (send_half("orders", 9), *chunks, send_half("orders", 7)):
        play = play >> Client(chunk) << Anything()
    for in_flight in (9, 7):
        assert not commits(play >> Broker(stored(in_flight, OFFSET)) << Anything())
    # It is still ambiguous later.
    play = play >> Broker(stored(7, OFFSET)) << Anything() >> Client(send_half("orders", 8)) << Anything()
    assert not commits(play >> Broker(stored(8, OFFSET)) << Anything())


def test_a_connection_with_ambiguous_answers_commits_the_brokers_checks() -> None:
    play = Playbook() >> Client(NOT_NUMBERED) << Anything() >> Broker(check_transaction(OFFSET)) << Anything()
    assert commits(play)


def test_a_held_message_is_not_treated_as_a_half_message() -> None:
    play = Playbook(hold("slow")) >> Client(send("slow", 7)) >> Client(send_half("orders", 7)) << Anything()
    play = play >> Release(0) << Anything()
    assert not commits(play >> Broker(stored(7, OFFSET)) << Anything())


def test_a_message_beyond_the_remembered_ones_is_not_treated_as_a_half_message() -> None:
    for last in (send("orders", -7), heartbeat(-7), pull(-7)):
        play = Playbook() >> Client(b"".join(send("orders", number) for number in range(MAX_PENDING))) << Anything()
        play = play >> Client(last) << Anything() >> Broker(stored(1, OFFSET)) << Anything()
        play = play >> Client(send_half("orders", -7)) << Anything() >> Broker(stored(-7, OFFSET)) << Anything()
        assert not commits(play)


def test_unread_requests_make_answers_ambiguous() -> None:
    limiting = False
    play = Playbook(limiting=lambda: limiting) >> Client(unparsable()) << Anything()
    limiting = True
    play = play >> Client(send_half("orders", 7)) << Anything() >> Broker(stored(7, OFFSET)) << Anything()
    assert not commits(play)


V1 = {"producerGroup": "producers", "topic": "orders", "sysFlag": "4"}


@pytest.mark.parametrize(
    "whole",
    [
        json_frame(324, V1 | {"properties": "PGROUP\x01producers\x02TRAN_MSG\x01true\x02"}, opaque=7),
        send("orders", 7, code=325, sys_flag="4", properties=HALF),
        send("orders", 7, batch=True, sys_flag="4", properties=HALF, body=read_body(send_batch("orders", 1))),
        json_frame(
            10,
            V1
            | {
                "properties": "PGROUP\x01producers\x02REAL_TOPIC\x01closed\x02",
                "i": "PGROUP\x01producers\x02TRAN_MSG\x01true\x02",
            },
            opaque=7,
        ),
    ],
    ids=["reply", "reply_v2", "batch", "properties_of_another_kind_of_send"],
)
def test_a_plain_stored_message_is_not_a_half_message(whole: bytes) -> None:
    play = Playbook() >> Client(whole) << Anything() >> Broker(stored(7, OFFSET)) << Anything()
    assert not commits(play)


def test_commit_that_cannot_be_read_exactly_is_refused() -> None:
    whole = end_transaction(OFFSET).replace(b'"code":37', b'"code":"7"').replace(b'"7"', b"'37'")
    header = whole[8:]
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    play = begun() >> Client(frame) << Anything()
    assert play.refused_by == ["unknown_transaction"]


def test_half_messages_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_HALVES", 3)
    hub = Transactions()
    play = Playbook(hub=hub)
    for number in range(5):
        play = play >> Client(send_half("orders", number, UNIQ_KEY=str(number))) << Anything()
        play = play >> Broker(stored(number, number, transaction=str(number))) << Anything()
    assert len(hub) == 3
    assert [commits(play, number) for number in range(5)] == [False, False, True, True, True]
    assert len(hub) == len(hub._open) == 0
    assert commits(play >> Broker(check_transaction(0)) << Anything(), 0), "the broker asks for what was forgotten"
    assert len(hub._committed) == 3


def stored_once(hub: Transactions) -> None:
    """Check that a half message can be committed for the price of its send, only once."""
    play = Playbook(hub=hub)
    assert commits(play)
    assert play.requests[-1].resources == (Resource("transaction", "producers"),)
    assert not commits(play)


def test_commit_that_a_limit_refused_may_be_repeated() -> None:
    hub = Transactions()
    begun(hub=hub)
    assert not commits(Playbook(refuse("producers"), hub=hub))
    stored_once(hub)


@pytest.mark.parametrize("by", ["end", "close", "undecided"])
def test_commit_that_was_not_decided_when_its_connection_ended_may_be_repeated(by: str) -> None:
    hub = Transactions()
    begun(hub=hub)
    if by == "undecided":
        play = Playbook(hub=hub) >> Undecided(end_transaction(OFFSET))
    else:
        play = Playbook(hold("producers"), hub=hub) >> Client(end_transaction(OFFSET))
    if by == "end":
        play = play >> End(Side.CLIENT) << Anything()
    else:
        play.session.close()
    stored_once(hub)


def test_of_two_commits_at_once_the_second_is_refused_though_the_first_may_be_undone() -> None:
    hub = Transactions()
    begun(hub=hub)
    play = Playbook(refuse("producers"), hub=hub) >> Client(end_transaction(OFFSET) * 2) << Anything()
    assert play.refused_by == ["unknown_transaction"]
    stored_once(hub)


@pytest.mark.parametrize("in_between", [True, False])
def test_checked_transaction_after_a_refused_commit_is_already_paid(in_between: bool) -> None:  # noqa: FBT001
    hub = Transactions()
    begun(hub=hub)
    play = Playbook(hold("producers"), hub=hub) >> Client(end_transaction(OFFSET))
    if not in_between:
        play = play >> GiveUp(0)
    play = play >> Broker(check_transaction(OFFSET + 1)) << Anything()
    if in_between:
        play = play >> GiveUp(0)
    play = Playbook(hub=hub)
    assert commits(play, OFFSET + 1)
    assert play.requests[-1].resources == (Resource("transaction", "producers"),)
    assert not commits(play), "it is another copy of the same message"
    play = play >> Broker(check_transaction(OFFSET + 2)) << Anything()
    assert commits(play, OFFSET + 2)
    assert play.requests[-1].resources[1:] == (Resource("topic", "orders"),)
