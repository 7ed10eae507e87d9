"""Busy answers during an alarm, whatever the limits."""

from playbook.frames import (
    heartbeat,
    pull,
    read_header,
    send,
    send_back,
    send_batch,
    send_half,
)
from playbook.playbook import Anything, Client, Playbook
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from limiter.counting.accounts import Accounts
from proxy.deciding.batch import Side
from proxy.deciding.counting import Tally
from proxy.flow.alarms import MemoryAlarm, reason

MEMORY = "Sluice is low on memory"
SENDS = (send("a", 1), send_back("g", 2), send_batch("a", 3, 3), send_half("a", 4), send("%RETRY%g", 5))
OTHERS = (pull(6), heartbeat(7))


def alarmed(play: Playbook, why: str = MEMORY) -> Playbook:
    play.session.alarm(why, 0)
    return play


def refused(play: Playbook) -> list[tuple[object, object, object]]:
    """Return code, opaque and remark of each answer to the client."""
    answers, given = [], play.given[Side.CLIENT]
    while given:
        end = 4 + int.from_bytes(given[:4])
        header = read_header(given[:end])
        answers.append((header["code"], header["opaque"], header["remark"]))
        given = given[end:]
    return answers


def test_sends_are_refused_as_busy_and_other_requests_pass() -> None:
    play = alarmed(Playbook()) >> Client(b"".join(SENDS) + b"".join(OTHERS)) << Anything()
    assert play.given[Side.BROKER] == b"".join(OTHERS)
    remark = "Sluice is low on memory and accepts no messages until the alarm ends"
    assert refused(play) == [(2, opaque, remark) for opaque in range(1, 6)]
    assert play.refused_by == ["alarm:memory"] * 5


def test_a_chunk_of_plain_frames_alone_is_refused() -> None:
    play = alarmed(Playbook()) >> Client(b"".join(send("a", opaque) for opaque in range(200))) << Anything()
    assert not play.given[Side.BROKER]
    assert [opaque for _, opaque, _ in refused(play)] == list(range(200))
    assert play.session.in_flight() == 0


def test_the_stage_shows_that_it_is_blocked_once_something_is_refused() -> None:
    play = alarmed(Playbook()) >> Client(OTHERS[0]) << Anything()
    stage = play.session._stage  # type: ignore[attr-defined] # RocketMQ's
    assert stage.state(0) == "running"
    assert (play >> Client(SENDS[0]) << Anything() and stage.state(0)) == "blocked"


def test_the_words_of_the_alarms_are_understood() -> None:
    memory = MemoryAlarm()
    memory.update(0, 100, 0, 100)
    assert reason([memory]) == MEMORY


def test_the_refusals_are_counted_under_the_rule_that_no_rule_set_has() -> None:
    accounts = Accounts()
    accounts.take(0, unfinished=True)
    tally = Tally(accounts)
    session = alarmed(Playbook()).session
    batch = session.receive(Side.CLIENT, memoryview(b"".join(SENDS)), 0)
    assert batch is not None
    tally.count(batch, 0, tally.sender("192.0.2.1"))
    assert accounts.rules["alarm:memory"]["refuse"] == (5, 7)
    seconds = [second for second in accounts.steps_of(accounts.take(10**9, unfinished=True)) if second is not None]
    assert {each.rule for second in seconds for each in second.rejections} == {"alarm:memory"}
