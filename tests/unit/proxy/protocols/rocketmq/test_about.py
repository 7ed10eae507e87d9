"""What a session tells of its client, however that came to be said."""

import json
from collections.abc import Callable

import pytest
from playbook.frames import (
    ONEWAY,
    RESPONSE,
    binary_frame,
    cut,
    frame,
    heartbeat,
    json_frame,
    pull,
    send,
    send_back,
)
from playbook.playbook import Anything, Client, GiveUp, Playbook, hold, open_session

from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.about import MAX_HEARTBEAT_BYTES, MAX_NAMES, version_name
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN, ClientDescription

JAVA = ClientDescription("", "JAVA", "V5_5_0")


def body(name: object = "192.0.2.1@1#2", **others: object) -> bytes:
    return json.dumps({"clientID": name, "producerDataSet": [{"groupName": "p"}], **others}).encode()


def told(*pieces: bytes, limiting: bool = True) -> ClientDescription:
    """Return what is known of a client that sent these pieces."""
    session = open_session(limiting=limiting)
    for piece in pieces:
        batch = session.receive(Side.CLIENT, memoryview(bytearray(piece)), 0)
        if batch is not None:
            session.decided(batch, 0)
        session.take(Side.BROKER)
    return session.describe().client


# --- Language and version -------------------------------------------------------------------------


def test_nothing_is_known_of_a_client_that_said_nothing() -> None:
    assert told() == ClientDescription()
    assert told(send("a")[:20]) == ClientDescription()


@pytest.mark.parametrize("binary", [False, True])
def test_first_request_tells_language_and_version(*, binary: bool) -> None:
    assert told(send("a", binary=binary)) == JAVA


def test_later_requests_tell_nothing_new() -> None:
    other = frame(b'{"code":310,"language":"GO","version":317,"opaque":1,"flag":0,"extFields":{"b":"a"}}')
    assert told(other + send("a")) == ClientDescription("", "GO", "V4_5_2")


def test_overlong_language_is_cut() -> None:
    header = json.dumps({"code": 34, "language": "x" * 1000, "version": 1, "opaque": 1, "flag": 0}).encode()
    assert len(told(frame(header)).language) == 255


# --- The client's id ------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
def test_heartbeat_tells_the_id(*, binary: bool) -> None:
    assert told(heartbeat(body=body(), binary=binary)).id == "192.0.2.1@1#2"


def test_heartbeat_may_come_in_any_pieces_between_others() -> None:
    stream = send("a") + heartbeat(body=body()) + send("b", 2)
    for at in range(1, len(stream)):
        assert told(*cut(stream, at)).id == "192.0.2.1@1#2"
    assert told(*cut(stream, *range(len(stream)))).id == "192.0.2.1@1#2"


@pytest.mark.parametrize("make", [json_frame, binary_frame])
def test_signing_off_tells_the_id(make: Callable[..., bytes]) -> None:
    assert told(make(35, {"clientID": "me@1", "producerGroup": "p"})).id == "me@1"
    assert told(*cut(make(35, {"clientID": "me@1"}), *range(100))).id == "me@1"


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"clientID":7}',
        b'{"clientID":null}',
        b'{"clientID":""}',
        b'{"clientID":"\xff\xfe"}',
        b'{"clientID":"\\ud800"}',
        b'{"a":' * 10_000,
        b"\x00" * 500,
    ],
)
def test_garbage_is_no_id_and_no_harm(garbage: bytes) -> None:
    assert told(heartbeat(body=garbage) + send("a")).id in {"", "\ufffd"}
    assert told(heartbeat(body=garbage) + heartbeat(body=body("me"))).id == "me"


def test_overlong_id_is_cut() -> None:
    assert told(heartbeat(body=body("x" * 1000))).id == "x" * 255
    assert told(json_frame(35, {"clientID": "x" * 1000})).id == "x" * 255


def test_heartbeat_beyond_the_bound_is_not_read_and_not_kept() -> None:
    filler = "x" * (MAX_HEARTBEAT_BYTES - len(body("me", filler="")))
    assert told(heartbeat(body=body("me", filler=filler))).id == "me"
    assert told(heartbeat(body=body("me", filler=filler + "x"))).id == ""


def test_overlong_header_of_who_signs_off_is_not_read() -> None:
    assert told(json_frame(35, {"clientID": "me", "x": "x" * 5000})).id == ""


def test_first_id_is_kept() -> None:
    assert told(heartbeat(body=body("me")) + heartbeat(body=body("other"))).id == "me"


def test_answer_of_the_client_is_no_heartbeat() -> None:
    assert told(json_frame(34, flag=RESPONSE, body=body())).id == ""
    assert told(json_frame(35, {"clientID": "me"}, flag=RESPONSE)).id == ""


def test_oneway_heartbeat_is_one() -> None:
    assert told(json_frame(34, flag=ONEWAY, body=body("me"))).id == "me"


# --- Counts and names -----------------------------------------------------------------------------


def test_frames_and_refusals_are_counted() -> None:
    play = Playbook(hold("h", refusing=["r"]))
    play >> Client(heartbeat() + send("a") + send("r", 2) + send("r", 3) + send("h", 4)) << Anything()
    assert (play.session.describe().requests, play.session.describe().refused) == (5, 2)
    play >> GiveUp(0) << Anything()
    assert play.session.describe().refused == 3


def test_names_asked_for_are_shown_with_their_kinds() -> None:
    play = Playbook(limited=["subscription"])
    play >> Client(send("a") + send_back("g") + send("%RETRY%g") + pull(group="g", topic="a") + send("a")) << Anything()
    description = play.session.describe()
    assert description.resources == ("topic:a", "retry_group:g", "subscription:g@a")
    assert description.more_resources == 0


def test_beyond_the_bound_names_are_only_counted() -> None:
    play = Playbook()
    for number in range(MAX_RESOURCES_SHOWN + 5):
        play >> Client(send(f"t{number}")) << Anything()
    play >> Client(send_back("g")) << Anything()
    description = play.session.describe()
    assert description.resources == tuple(f"topic:t{number}" for number in range(MAX_RESOURCES_SHOWN))
    assert description.more_resources == 6


def test_what_is_remembered_of_names_is_bounded() -> None:
    play = Playbook()
    for number in range(3 * MAX_NAMES):
        play >> Client(send(f"t{number}")) << Anything()
    description = play.session.describe()
    assert len(description.resources) + description.more_resources <= MAX_NAMES


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (8, "V3_0_0_BETA6"),
        (15, "V3_0_0_FINAL"),
        (16, "V3_0_1_SNAPSHOT"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (63, "V3_1_8"),
        (85, "V3_2_9"),
        (86, "V3_3_1_SNAPSHOT"),
        (104, "V3_4_1_SNAPSHOT"),
        (211, "V3_9_9"),
        (212, "V4_0_0_SNAPSHOT"),
        (317, "V4_5_2"),
        (411, "V4_9_9"),
        (412, "V5_0_0_SNAPSHOT"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
    ],
)
def test_number_has_the_word_of_the_enumeration(number: int, name: str) -> None:
    assert version_name(number) == name


@pytest.mark.parametrize("number", [-(2**31), -1, 612, 2**31 - 1])
def test_number_without_a_word_stays_a_number(number: int) -> None:
    assert version_name(number) == str(number)


def test_no_two_numbers_have_the_same_word() -> None:
    assert len({version_name(number) for number in range(700)}) == 700
