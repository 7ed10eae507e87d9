"""Which storms are told, once, whatever is restarted or comes late."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from admin.analytics.alerts import GIVE_UP_S, MOST_PENDING, Event, Ledger, Sighting
from admin.analytics.findings import Share, Storm
from admin.common.errors import StartError

NOW_S = 1_800_000_000
Open = Callable[..., Ledger]


class Clock:
    """The wall clock."""

    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "_alerts" / "ledger.json"


@pytest.fixture
def open_ledger(tmp_path: Path, clock: Clock, warnings: list[str]) -> Callable[..., Ledger]:
    """Open the ledger, as after each start."""

    def open_() -> Ledger:
        return Ledger(tmp_path / "_alerts", "/srv/report.html", clock, warnings.append)

    return open_


def storm(start_s: int = NOW_S - 60, end_s: int = NOW_S - 5, *, over: bool = False, messages: int = 500) -> Sighting:
    return Sighting(
        Storm(
            instance="broker-a:10911",
            kind="topic",
            name="orders",
            start_s=start_s,
            end_s=end_s,
            requests=messages,
            messages=messages,
            peak_per_s=90,
            clients=(Share(name="10.0.0.1", messages=messages, share=1.0),),
            client_count=1,
            users=(Share(name="import", messages=messages, share=1.0),),
            user_count=1,
        ),
        is_over=over,
        limit_per_s=300.0,
    )


def head(ledger: Ledger) -> Event:
    event = ledger.head()
    assert event is not None
    return event


def deliver_all(ledger: Ledger) -> list[tuple[str, str]]:
    """Take everything out of the outbox, and return the events with their storms."""
    found = []
    while (event := ledger.head()) is not None:
        found.append((event.message.event, event.message.storm_id))
        ledger.delivered(event.key)
    return found


def test_storm_that_goes_on_has_begun_once_and_ends_once(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.update([storm()])
    ledger.update([storm(end_s=NOW_S)])
    (began,) = deliver_all(ledger)
    ledger.update([storm(end_s=NOW_S, over=True)])
    ledger.update([storm(end_s=NOW_S, over=True)])
    (ended,) = deliver_all(ledger)
    assert (began[0], ended[0]) == ("began", "ended")
    assert began[1] == ended[1]


def test_message_says_who_and_how_much(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.update([storm()])
    message = msgspec.json.decode(msgspec.json.encode(head(ledger).message))
    assert message == {
        "event": "began",
        "storm_id": message["storm_id"],
        "instance": "broker-a:10911",
        "kind": "topic",
        "name": "orders",
        "started_at": "2027-01-15T07:59:00Z",
        "ended_at": None,
        "refused_messages": 500,
        "peak_refused_per_s": 90,
        "clients": [{"name": "10.0.0.1", "messages": 500, "share": 1.0}],
        "users": [{"name": "import", "messages": 500, "share": 1.0}],
        "producer_groups": [],
        "limit_per_s": 300.0,
        "report": "/srv/report.html",
    }


def test_restart_sends_nothing_twice_and_forgets_nothing(open_ledger: Open) -> None:
    open_ledger().update([storm()])
    again = open_ledger()
    again.update([storm()])
    assert [event for event, _ in deliver_all(again)] == ["began"]
    after = open_ledger()
    after.update([storm(over=True)])
    assert [event for event, _ in deliver_all(after)] == ["ended"]


def test_messages_that_an_older_sluice_left_are_sent(open_ledger: Open, ledger_path: Path, warnings: list[str]) -> None:
    open_ledger().update([storm()])
    left = msgspec.json.decode(ledger_path.read_bytes())
    del left["outbox"][0]["message"]["users"]
    ledger_path.write_bytes(msgspec.json.encode(left))
    assert head(open_ledger()).message.users == ()
    assert warnings == []


def test_killed_between_the_answer_and_its_note_sends_the_same_key_again(open_ledger: Open) -> None:
    first = open_ledger()
    first.update([storm()])
    key = head(first).key
    assert head(open_ledger()).key == key


@pytest.mark.parametrize(
    "sighting",
    [storm(messages=99), storm(start_s=NOW_S - 14), storm(start_s=NOW_S - 9000, end_s=NOW_S - 3601, over=True)],
    ids=["few", "short", "long ago"],
)
def test_storm_that_is_not_worth_it_is_told_to_nobody(open_ledger: Open, sighting: Sighting) -> None:
    ledger = open_ledger()
    ledger.update([sighting])
    assert ledger.head() is None


def test_storm_that_was_over_before_it_was_seen_begins_and_ends(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.update([storm(over=True)])
    assert [event for event, _ in deliver_all(ledger)] == ["began", "ended"]


def test_late_records_that_join_two_storms_begin_nothing(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.update([storm(NOW_S - 300, NOW_S - 200), storm(NOW_S - 100, NOW_S - 10)])
    first, second = deliver_all(ledger)
    assert first[1] != second[1]
    ledger.update([storm(NOW_S - 300, NOW_S - 10)])
    assert deliver_all(ledger) == []
    ledger.update([storm(NOW_S - 300, NOW_S - 10, over=True)])
    assert deliver_all(ledger) == [("ended", first[1]), ("ended", second[1])]


def test_late_records_that_lengthen_a_storm_after_its_end_begin_nothing(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.update([storm(NOW_S - 100, NOW_S - 50, over=True)])
    deliver_all(ledger)
    ledger.update([storm(NOW_S - 130, NOW_S - 10)])
    ledger.update([storm(NOW_S - 130, NOW_S - 10, over=True)])
    assert deliver_all(ledger) == []


def test_next_storm_of_the_same_resource_is_another_one(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.update([storm(NOW_S - 300, NOW_S - 200, over=True)])
    ledger.update([storm(NOW_S - 300, NOW_S - 200, over=True), storm(NOW_S - 100, NOW_S)])
    events = deliver_all(ledger)
    assert [event for event, _ in events] == ["began", "ended", "began"]
    assert len({storm_id for _, storm_id in events}) == 2


def test_event_is_given_up_when_it_is_too_old(open_ledger: Open, clock: Clock, warnings: list[str]) -> None:
    ledger = open_ledger()
    ledger.update([storm()])
    clock.now_s += GIVE_UP_S
    ledger.failed(head(ledger).key, "no answer")
    assert ledger.head() is None
    assert warnings[0].startswith('webhook: "began" of the storm on topic orders at 2027-01-15T07:59:00Z is given up: ')
    assert "after 1 attempts in 24.0 h" in warnings[0]


def test_outbox_is_bounded(open_ledger: Open, warnings: list[str]) -> None:
    ledger = open_ledger()
    ledger.update(storm(NOW_S - 100 - n * 200, NOW_S - 50 - n * 200) for n in range(17))
    for _ in range(MOST_PENDING // 16):
        # Each of these is told as a storm of another resource.
        ledger.update(
            Sighting(msgspec.structs.replace(storm().storm, name=f"{_}-{number}"), is_over=False)
            for number in range(17)
        )
    assert ledger.pending == MOST_PENDING
    assert warnings


def test_damaged_ledger_is_set_aside(open_ledger: Open, ledger_path: Path, warnings: list[str]) -> None:
    ledger_path.parent.mkdir()
    ledger_path.write_bytes(b'{"alerts": [')
    open_ledger().update([storm()])
    assert "ledger.damaged" in warnings[0]
    assert ledger_path.with_suffix(".damaged").exists()


def test_ledger_of_another_version_is_left_alone(open_ledger: Open, ledger_path: Path) -> None:
    ledger_path.parent.mkdir()
    ledger_path.write_bytes(b'{"version": 7}')
    with pytest.raises(StartError, match="is of version 7"):
        open_ledger()


def test_what_was_told_long_ago_is_forgotten(open_ledger: Open, clock: Clock, ledger_path: Path) -> None:
    ledger = open_ledger()
    ledger.update([storm(over=True)])
    deliver_all(ledger)
    clock.now_s += 30 * 24 * 3600
    ledger.update([])
    assert msgspec.json.decode(ledger_path.read_bytes())["alerts"] == []
