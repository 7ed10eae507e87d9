"""A session's information about its client, from any source."""

import json
from collections.abc import Callable

import pytest
from playbook.frames import (
    binary_frame,
    cut,
    heartbeat,
    json_frame,
    send,
    send_back,
)
from playbook.playbook import Anything, Client, GiveUp, Playbook, hold, open_session

from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.client_info import MAX_NAMES, version_name
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN, ClientDescription

JAVA = ClientDescription("", "JAVA", "V5_5_0")


def body(name: object = "192.0.2.1@1#2", **others: object) -> bytes:
    return json.dumps({"clientID": name, "producerDataSet": [{"groupName": "p"}], **others}).encode()


def told(*pieces: bytes, limiting: bool = True) -> ClientDescription:
    """Return the information about a client that sent these pieces."""
    session = open_session(limiting=limiting)
    for piece in pieces:
        batch = session.receive(Side.CLIENT, memoryview(bytearray(piece)), 0)
        if batch is not None:
            session.decided(batch, 0)
        session.take(Side.BROKER)
    return session.describe(0).client


# --- Language and version -------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
def test_first_request_has_language_and_version(*, binary: bool) -> None:
    assert told(send("a", binary=binary)) == JAVA


# --- The client's id ------------------------------------------------------------------------------


def test_heartbeat_may_come_in_any_pieces_between_others() -> None:
    stream = send("a") + heartbeat(body=body()) + send("b", 2)
    for at in range(1, len(stream)):
        assert told(*cut(stream, at)).id == "192.0.2.1@1#2"
    assert told(*cut(stream, *range(len(stream)))).id == "192.0.2.1@1#2"


@pytest.mark.parametrize("make", [json_frame, binary_frame])
def test_an_unregister_request_has_the_client_id(make: Callable[..., bytes]) -> None:
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
def test_garbage_is_a_harmless_non_id(garbage: bytes) -> None:
    assert told(heartbeat(body=garbage) + send("a")).id in {"", "\ufffd"}
    assert told(heartbeat(body=garbage) + heartbeat(body=body("me"))).id == "me"


# --- Counts and names -----------------------------------------------------------------------------


def test_beyond_the_bound_names_are_only_counted() -> None:
    play = Playbook()
    for number in range(MAX_RESOURCES_SHOWN + 5):
        play >> Client(send(f"t{number}")) << Anything()
    play >> Client(send_back("g")) << Anything()
    description = play.session.describe(0)
    assert description.resources == tuple(f"topic:t{number}" for number in range(MAX_RESOURCES_SHOWN))
    assert description.more_resources == 6


def test_remembered_names_are_bounded() -> None:
    play = Playbook()
    for number in range(3 * MAX_NAMES):
        play >> Client(send(f"t{number}")) << Anything()
    description = play.session.describe(0)
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


def test_frames_and_refusals_are_counted() -> None:
    play = Playbook(hold("h", refusing=["r"]))
    play >> Client(heartbeat() + send("a") + send("r", 2) + send("r", 3) + send("h", 4)) << Anything()
    assert (play.session.describe(0).requests, play.session.describe(0).refused) == (5, 2)
    play >> GiveUp(0) << Anything()
    assert play.session.describe(0).refused == 3
