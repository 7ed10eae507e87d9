"""``GET events``: streams changes to limits and to the sidecar's state as server-sent events.

Events are not queued for slow clients. The next event that a client reads contains all changes since the last one.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import trio
from starlette.responses import Response, StreamingResponse

from admin import wire
from admin.http.api.answers import encode
from admin.http.api.state import Services, Status
from admin.http.problems import NO_STORE, problem
from admin.stats import Query

MAX_STREAMS: Final = 64
RETRY_AFTER_S: Final = 5
HEARTBEAT_S: Final = 10.0


class Events:
    def __init__(self, services: Services, status: Status) -> None:
        self._stats, self._status = services.stats, status
        self.open = 0
        #: All streams wake at the same time, but run one after another, so that they do not delay the data path.
        self._turns = trio.StrictFIFOLock()

    def follow(self, query: Query) -> Response:
        if self.open >= MAX_STREAMS:
            detail = f"the maximum of {MAX_STREAMS} event streams are open; close one, or try again later"
            return problem(503, detail, headers={"retry-after": str(RETRY_AFTER_S)})
        headers = {**NO_STORE, "x-accel-buffering": "no"}
        return StreamingResponse(self.stream(query), headers=headers, media_type=wire.EVENT_STREAM)

    async def stream(self, query: Query) -> AsyncIterator[bytes]:
        page: wire.LimitPage | None = None
        state: wire.State | None = None
        changes_seen = self._stats.changed
        silent_since = trio.current_time()
        self.open += 1
        try:
            while state is None or not state.draining:
                async with self._turns:
                    before, page = page, await self._stats.query(query)
                    parts = [event("limits", await encode(page)) if before is None else _changed(before, page)]
                    changes, changes_seen = self._stats.changes_since(changes_seen), self._stats.changed
                    parts += [event("change", msgspec.json.encode(change)) for change in changes]
                    now = await self._status.state()
                if state is None or _without_uptime(now) != _without_uptime(state):
                    state = now
                    parts.append(event("state", msgspec.json.encode(state)))
                if state.draining:
                    parts.append(event("bye", b'{"reason":"draining"}'))
                if news := b"".join(parts):
                    yield news
                elif trio.current_time() - silent_since >= HEARTBEAT_S:
                    yield b": alive\n\n"
                else:
                    await self._stats.next_tick()
                    continue
                silent_since = trio.current_time()
                await self._stats.next_tick()
        finally:
            self.open -= 1


def _changed(before: wire.LimitPage, page: wire.LimitPage) -> bytes:
    known = {row.key: row for row in before.rows}
    rows = [row for row in page.rows if row != known.get(row.key)]
    news: dict[str, Any] = {}
    order = [row.key for row in page.rows]
    if order != [row.key for row in before.rows]:
        news["order"] = order
    for name in ("total", "totals", "kinds"):
        if getattr(page, name) != getattr(before, name):
            news[name] = getattr(page, name)
    if not rows and not news and page.etag == before.etag:
        return b""
    news |= {"rows": rows} | {name: getattr(page, name) for name in ("sampled_at", "rule_set_version", "etag")}
    return event("limits", msgspec.json.encode(news))


def _without_uptime(state: wire.State) -> wire.State:
    return msgspec.structs.replace(state, uptime_s=0)


def event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
