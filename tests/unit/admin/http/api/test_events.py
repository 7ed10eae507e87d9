import json
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from admin.http.api import events
from admin.http.api.events import Stream
from admin.http.api.state import Status
from admin.stats import Query
from proxy.stats.snapshot import ResourceCounts, ResourceState, Usage

VERDICTS = ("pass", "refuse", "bypass", "shadow", "exempt", "drop")


def resource(name: str, passed: int, *, refused: int = 0) -> ResourceState:
    counts = dict.fromkeys(VERDICTS, 0) | {"pass": passed, "refuse": refused}
    return ResourceState(
        kind="topic",
        name=name,
        counts=ResourceCounts(requests=dict(counts), messages=dict(counts)),
        usage={"messages": Usage(0.5, 0.5, 0.5)},
        stored_permits=1.0,
        open=False,
        wait_us=0,
        last_refused_ns=None,
        last_wait_us=0,
    )


def read(text: bytes) -> list[tuple[str, Any]]:
    found = []
    for event in text.decode().split("\n\n"):
        if event:
            name, data = event.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.fixture
def stream(served: Any) -> Stream:
    return Stream(served.services, Status(served.services), Query(search="or", history=True))


async def test_the_first_event_is_the_page_and_then_only_what_changed_comes(served: Any, stream: Stream) -> None:
    (first, page), (second, state) = read(await stream.news())
    assert (first, second) == ("limits", "state")
    assert [row["key"] for row in page["rows"]] == ["topic/orders"]
    assert state["version"]
    assert await stream.news() == b""


async def test_figures_come_as_members_of_a_row(served: Any, stream: Stream) -> None:
    served.data_path.resources_now = [resource("orders", 100)]
    await served.board.sample()
    await stream.news()
    served.data_path.resources_now = [resource("orders", 150)]
    await served.board.sample()
    ((_, news),) = [each for each in read(await stream.news()) if each[0] == "limits"]
    assert [set(row) for row in news["rows"]] == [{"key", "live"}]
    assert news["rows"][0]["live"]["messages_per_s"]["passed"] > 0
    assert "order" not in news


async def test_a_new_row_comes_whole_and_with_the_order(served: Any, stream: Stream) -> None:
    await stream.news()
    served.data_path.resources_now = [resource("border", 1)]
    await served.board.sample()
    ((_, news),) = [each for each in read(await stream.news()) if each[0] == "limits"]
    assert news["order"] == ["topic/border", "topic/orders"]
    (row,) = news["rows"]
    assert (row["key"], row["own"], row["limit_text"]) == ("topic/border", False, "1000/s")
    assert news["total"] == 2


async def test_a_change_is_told_with_what_it_changed(served: Any, stream: Stream) -> None:
    await stream.news()
    await served.put("limits/topic/orders", {"rate": 10, "reason": "<b>why</b>\n\nevent: bye"})
    await trio.testing.wait_all_tasks_blocked()
    told = read(await stream.news())
    assert [name for name, _ in told] == ["limits", "change", "state"]
    assert told[0][1]["rows"][0]["limit"]["rate"] == 10
    assert "live" not in told[0][1]["rows"][0]
    assert told[1][1]["reason"] == "<b>why</b>\n\nevent: bye"


async def test_a_drain_ends_the_stream(served: Any, stream: Stream) -> None:
    await stream.news()
    assert not stream.ends
    served.data_path.snapshot_now = msgspec.structs.replace(served.data_path.snapshot_now, draining=True)
    await served.board.sample()
    assert [name for name, _ in read(await stream.news())][-1] == "bye"
    assert stream.ends


async def follow(served: Any, send: Any, receive: Any) -> None:
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events",
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "state": {},
    }
    await served.app(scope, receive, send)


async def test_streams_are_bounded(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 1)
    started = trio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, served, send, trio.sleep_forever)
        await started.wait()
        answer = await served.get("events")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["status"] == 503
        nursery.cancel_scope.cancel()


async def test_a_reader_who_takes_nothing_is_cut(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CUT_AFTER_S", 0.01)
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await trio.sleep_forever()

    await follow(served, send, trio.sleep_forever)
    # Left without an end: whoever serves this closes the connection.
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[1]["more_body"]


async def test_a_client_that_leaves_ends_its_stream(served: Any) -> None:
    sent = trio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.set()

    async def receive() -> Any:
        await sent.wait()
        return {"type": "http.disconnect"}

    with trio.fail_after(30):
        await follow(served, send, receive)


async def test_a_silent_stream_says_that_it_is_alive(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.0)
    alive = trio.Event()

    async def send(message: Any) -> None:
        if message.get("body") == b": alive\n\n":
            alive.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, served, send, trio.sleep_forever)
        with trio.fail_after(30):
            await alive.wait()
        nursery.cancel_scope.cancel()
