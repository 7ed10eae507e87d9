import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from admin.http.api import events
from admin.http.api.events import Events
from admin.http.api.state import Status
from admin.stats import Query
from limiter.counting.accounts import Usage
from proxy.stats.snapshot import ResourceCounts, ResourceState

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


class Stream:
    """The events for one client, read one by one."""

    def __init__(self, served: Any) -> None:
        self.events = Events(served.services, Status(served.services))
        self.stream = self.events.stream(Query(search="or", history=True))

    async def news(self) -> list[tuple[str, Any]]:
        return read(await anext(self.stream))


@pytest.fixture
async def stream(served: Any) -> AsyncIterator[Stream]:
    opened = Stream(served)
    yield opened
    await opened.stream.aclose()


async def test_the_first_event_is_the_page_and_then_only_changes_come(served: Any, stream: Stream) -> None:
    (first, page), (second, state) = await stream.news()
    assert (first, second) == ("limits", "state")
    assert [row["key"] for row in page["rows"]] == ["topic/orders"]
    assert state["version"]
    served.data_path.resources_now = [resource("border", 100)]
    await served.stats.sample()
    ((_, news),) = [each for each in await stream.news() if each[0] == "limits"]
    assert news["order"] == ["topic/border", "topic/orders"]
    (row,) = news["rows"]
    assert (row["key"], row["own"], row["limit_text"]) == ("topic/border", False, "1000/s")
    assert news["total"] == 2


async def test_a_change_is_shown_with_its_effect(served: Any, stream: Stream) -> None:
    await stream.news()
    await served.put("limits/topic/orders", {"rate": 10, "reason": "<b>why</b>\n\nevent: bye"})
    await trio.testing.wait_all_tasks_blocked()
    told = await stream.news()
    assert [name for name, _ in told] == ["limits", "change", "state"]
    assert told[0][1]["rows"][0]["limit"]["rate"] == 10
    assert told[1][1]["reason"] == "<b>why</b>\n\nevent: bye"


async def test_a_drain_ends_the_stream(served: Any, stream: Stream) -> None:
    await stream.news()
    served.data_path.snapshot_now = msgspec.structs.replace(served.data_path.snapshot_now, draining=True)
    await served.stats.sample()
    assert [name for name, _ in await stream.news()][-1] == "bye"
    with pytest.raises(StopAsyncIteration):
        await stream.news()


async def test_a_silent_stream_sends_keep_alives(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.0)
    await stream.news()
    with trio.fail_after(30):
        assert await anext(stream.stream) == b": alive\n\n"


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


async def test_streams_are_bounded_and_one_ends_when_its_client_leaves(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 1)
    begun, leave = trio.Event(), trio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            begun.set()

    async def receive() -> Any:
        await leave.wait()
        return {"type": "http.disconnect"}

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, served, send, receive)
            await begun.wait()
            answer = await served.get("events")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            leave.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, served, send, receive)
