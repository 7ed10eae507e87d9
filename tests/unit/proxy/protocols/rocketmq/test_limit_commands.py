"""Requests to Sluice itself: permissions, contents, answers, and the broker's view."""

import json
from ipaddress import ip_network

import pytest
from playbook.frames import (
    ONEWAY,
    RESPONSE,
    cut,
    read_body,
    read_header,
    send,
    split,
    update_limit,
    view_limits,
)
from playbook.playbook import (
    ADDRESS,
    Anything,
    Client,
    Decide,
    Playbook,
    Reply,
    ToBroker,
    ToClient,
    busy,
    pass_all,
    refuse,
)

from proxy.control import LimitCommandReply, ListedLimit
from proxy.deciding.batch import Side
from proxy.protocols.base import CommandStatus
from proxy.protocols.rocketmq.options import Networks
from proxy.protocols.rocketmq.wire.command import MAX_DECODED_HEADER_BYTES

EVERYBODY = Networks((ip_network("0.0.0.0/0"),))
DONE = LimitCommandReply(version=7)
A, B = send("a", 11), send("b", 12)


def allowed(decide: Decide = pass_all, *, asked: CommandStatus = "taken") -> Playbook:
    """Return a connection whose client has all permissions."""
    return Playbook(decide, asked=asked, remote_view_from=EVERYBODY, remote_update_from=EVERYBODY)


def to_client(play: Playbook) -> bytes:
    return b"".join(play.last_slices[Side.CLIENT])


def answered(play: Playbook) -> dict[str, object]:
    play << Anything()
    (whole,) = split(to_client(play))
    return read_header(whole)


# --- Questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "rate_per_s"),
    [
        ("0", 0.0),
        ("-0.0", 0.0),
        ("0.5", 0.5),
        ("500", 500.0),
        ("1.0E7", 1e7),
        ("1000000000", 1e9),
        ("+5.", 5.0),
    ],
)
def test_rates_are_read_as_java_and_people_write_them(written: str, rate_per_s: float) -> None:
    play = allowed() >> Client(update_limit("orders", written))
    assert str(play.asks[0].rate_per_s) == str(rate_per_s)


# --- Refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "qps",
    [None, "", "-1", "-0.001", "NaN", "Infinity", "1e400", "1000000000.1", "1_000", " 5", "five", "\u0665", "0x10"],
)
def test_bad_rate_is_an_invalid_parameter_with_allowed_values(qps: str | None) -> None:
    play = allowed() >> Client(update_limit("orders", qps, 9))
    header = answered(play)
    assert (header["code"], header["opaque"], header["flag"]) == (29, 9, 1)
    assert "invalid topicLimitQps" in str(header["remark"])
    assert "between 0 (which refuses everything) and 1000000000" in str(header["remark"])
    assert not play.asks


@pytest.mark.parametrize(
    "topic",
    [None, "", "*", "a*", "a?", "[a]", "a b", "a/b", "ö", "x" * 256, "%RETRY%", "%RETRY%*", "%RETRY%" + "x" * 249],
)
def test_bad_name_is_an_invalid_parameter_and_no_pattern(topic: str | None) -> None:
    play = allowed() >> Client(update_limit(topic, "5"))
    header = answered(play)
    assert header["code"] == 29
    assert "invalid topic" in str(header["remark"])
    assert len(str(header["remark"])) < 400
    assert not play.asks


@pytest.mark.parametrize("field", ["disabled", "defaultLimitQps", "sendMsgBackLimitQps"])
def test_unsupported_changes_are_refused_by_name(field: str) -> None:
    play = allowed() >> Client(update_limit("orders", "5", **{field: "true"}))
    header = answered(play)
    assert header["code"] == 29
    assert field in str(header["remark"])
    assert not play.asks


def test_overlong_header_is_not_read() -> None:
    play = allowed() >> Client(update_limit("orders", "5", filler="x" * MAX_DECODED_HEADER_BYTES))
    assert answered(play)["code"] == 29


@pytest.mark.parametrize(
    ("request_frame", "option"),
    [(view_limits(3), "remote_view_from"), (update_limit("orders", "5", 3), "remote_update_from")],
)
def test_a_client_outside_the_networks_is_refused_with_the_options_name(request_frame: bytes, option: str) -> None:
    play = Playbook(asked="taken") >> Client(request_frame)
    header = answered(play)
    assert (header["code"], header["opaque"], header["flag"]) == (16, 3, 1)
    assert option in str(header["remark"])
    assert ADDRESS in str(header["remark"])
    assert not play.asks


def test_each_option_allows_its_own_request_only() -> None:
    viewer = Playbook(asked="taken", remote_view_from=EVERYBODY) >> Client(view_limits() + update_limit("a", "5", 2))
    assert answered(viewer)["opaque"] == 2
    assert [ask.verb for ask in viewer.asks] == ["view_limits"]
    changer = Playbook(asked="taken", remote_update_from=EVERYBODY) >> Client(view_limits() + update_limit("a", "5", 2))
    assert answered(changer)["opaque"] == 1
    assert [ask.verb for ask in changer.asks] == ["update_limit"]


@pytest.mark.parametrize(
    "request_frame",
    [view_limits(flag=ONEWAY), update_limit("orders", "5", flag=ONEWAY), update_limit("*", "x", flag=ONEWAY)],
)
@pytest.mark.parametrize("networks", [Networks(), EVERYBODY])
@pytest.mark.parametrize("asked", ["taken", "full"])
def test_oneway_request_has_no_answer(request_frame: bytes, networks: Networks, asked: CommandStatus) -> None:
    play = Playbook(asked=asked, remote_view_from=networks, remote_update_from=networks) >> Client(request_frame)
    assert play
    if play.asks and asked == "taken":
        assert play.session.in_flight() == 1
        play >> Reply(0, DONE)
        assert play
    assert play.session.in_flight() == 0


# --- Answers -----------------------------------------------------------------------------


def test_update_that_was_done_is_a_success_without_body() -> None:
    play = allowed() >> Client(update_limit("orders", "5", 42)) >> Reply(0, DONE)
    header = answered(play)
    assert (header["code"], header["opaque"], header["flag"]) == (0, 42, RESPONSE)
    assert not read_body(to_client(play))


def test_a_failed_update_has_a_reason() -> None:
    play = allowed() >> Client(update_limit("orders", "5", 42)) >> Reply(0, LimitCommandReply(error="the disk is full"))
    header = answered(play)
    assert (header["code"], header["remark"]) == (1, "the disk is full")


def test_view_lists_topics_and_retry_groups_in_the_words_of_the_wire() -> None:
    limits = (
        ListedLimit("topic", "orders", 500.0, 1200, 1_700_000_000_123),
        ListedLimit("retry_group", "billing", 0.0, 0, 0),
        ListedLimit("topic", "free", None, 0, 0),
        ListedLimit("subscription", "g@t", 5.0, 0, 0),
    )
    play = allowed() >> Client(view_limits(3)) >> Reply(0, LimitCommandReply(version=12, limits=limits))
    assert answered(play)["code"] == 0
    assert json.loads(read_body(to_client(play))) == {
        "dataVersion": {"counter": 12, "stateVersion": 0, "timestamp": 0},
        "topicRateLimitList": [
            {
                "topic": "orders",
                "limitQps": 500.0,
                "lastNeedWaitMicrosecs": 1200,
                "lastRateLimitTimestamp": 1_700_000_000_123,
            },
            {"topic": "%RETRY%billing", "limitQps": 0.0, "lastNeedWaitMicrosecs": 0, "lastRateLimitTimestamp": 0},
            {"topic": "free", "limitQps": -1.0, "lastNeedWaitMicrosecs": 0, "lastRateLimitTimestamp": 0},
        ],
    }


# --- Beside other requests ------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
def test_requests_around_it_are_forwarded(*, binary: bool) -> None:
    whole = update_limit("x", "5", body=b"some body", binary=binary)
    stream = A + whole + B
    assert allowed() >> Client(stream) << ToBroker(A, B)
    for at in range(1, len(stream)):
        play = allowed()
        for piece in cut(stream, at):
            play >> Client(piece) << Anything()
        assert play.given[Side.BROKER] == A + B
        assert len(play.asks) == 1
        assert play.session.between_frames(Side.CLIENT)


def test_frame_that_ends_where_the_next_begins_keeps_its_place() -> None:
    # The first header comes in two pieces without a body: the second has only its end.
    first = view_limits(1)
    play = allowed(refuse("b")) >> Client(first[:-1])
    play >> Client(first[-1:] + B + A) << ToBroker(A) << ToClient(busy("b", 12))
    assert play
    assert len(play.asks) == 1


# --- Bounds and drains ----------------------------------------------------------------------------


def test_without_room_the_answer_is_busy() -> None:
    play = allowed(asked="full") >> Client(view_limits(5))
    assert answered(play)["code"] == 2
    assert play.session.in_flight() == 0


def test_view_that_fits_no_frame_is_an_error() -> None:
    limits = (ListedLimit("topic", "x" * 255, 5.0, 0, 0),) * 50_000
    play = allowed() >> Client(view_limits(3)) >> Reply(0, LimitCommandReply(limits=limits))
    header = answered(play)
    assert header["code"] == 1
    assert "do not fit" in str(header["remark"])
