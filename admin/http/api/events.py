"""``events``: the table and the state as they change, as server-sent events.

A stream sends the changes since its last event, and looks again once that was read. It queues nothing for slow readers.
"""

from typing import Any, Final

import msgspec
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from admin import wire
from admin.http.api.answers import encode, problem
from admin.http.api.requests import LimitsQuery, board_query
from admin.http.api.state import Services, Status
from admin.stats import Query as BoardQuery

MAX_STREAMS: Final = 64
RETRY_AFTER_S: Final = 5
HEARTBEAT_S: Final = 10.0
CUT_AFTER_S: Final = 20.0
"""A reader that reads nothing for this long is disconnected."""

_ALIVE: Final = b": alive\n\n"
_ENTRY: Final = tuple(field for field in wire.Row.__struct_fields__ if field not in {"key", "live", "history"})


class Stream:
    """The events for one client."""

    def __init__(self, services: Services, status: Status, query: BoardQuery) -> None:
        self._live, self._board = services.live, services.board
        self._status, self._query = status, query
        self._page: wire.LimitPage | None = None
        self._state: wire.State | None = None
        self._changes_seen = self._board.changed

    @property
    def ends(self) -> bool:
        """Whether the stream is at its end."""
        return self._state is not None and self._state.draining

    async def news(self) -> bytes:
        """Return what changed since the last call, as events; empty if nothing did."""
        page = await self._board.query(self._query)
        parts = [event("limits", await encode(page)) if self._page is None else _changed(self._page, page)]
        self._page = page
        new, self._changes_seen = self._board.changes_since(self._changes_seen), self._board.changed
        parts += [event("change", msgspec.json.encode(change)) for change in new]
        state = await self._status.state()
        if self._state is None or _timeless(state) != _timeless(self._state):
            self._state = state
            parts.append(event("state", msgspec.json.encode(state)))
        if state.draining:
            parts.append(event("bye", b'{"reason":"draining"}'))
        return b"".join(parts)


def _changed(before: wire.LimitPage, page: wire.LimitPage) -> bytes:
    known = {row.key: row for row in before.rows}
    rows = [members for row in page.rows if (members := _difference(known.get(row.key), row))]
    news: dict[str, Any] = {}
    order = [row.key for row in page.rows]
    if order != [row.key for row in before.rows]:
        news["order"] = order
    for name in ("total", "totals", "kinds"):
        if getattr(page, name) != getattr(before, name):
            news[name] = getattr(page, name)
    if not rows and not news and page.etag == before.etag:
        return b""
    news |= {
        "rows": rows,
        "sampled_at": page.sampled_at,
        "rule_set_version": page.rule_set_version,
        "etag": page.etag,
    }
    return event("limits", msgspec.json.encode(news))


def _difference(before: wire.Row | None, row: wire.Row) -> dict[str, Any] | wire.Row:
    """Return the changed members of a row, with its key; empty if none changed; the whole row if it is new."""
    if before is None:
        return row
    members: dict[str, Any] = {}
    if row.etag != before.etag or row.own != before.own:
        members |= {name: getattr(row, name) for name in _ENTRY}
    if row.live != before.live:
        members["live"] = row.live
    if row.history != before.history:
        members["history"] = row.history
    return {"key": row.key, **members} if members else {}


def _timeless(state: wire.State) -> wire.State:
    return msgspec.structs.replace(state, uptime_s=0)


def event(name: str, data: bytes) -> bytes:
    """Write one event."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class _EventResponse(Response):
    """Sends a stream until its client leaves or reads nothing."""

    media_type = wire.EVENT_STREAM

    def __init__(self, stream: Stream, events: "Events") -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        # A stream has no length.
        del self.headers["content-length"]
        self._stream, self._events = stream, events

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send events."""
        self._events.open.add(self._stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_left, receive, nursery.cancel_scope)
                await self._send_all(send)
                nursery.cancel_scope.cancel()
        finally:
            self._events.open.discard(self._stream)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        silent_since = trio.current_time()
        while not self._stream.ends:
            # All streams wake at the same moment, and must not hold up the data path together.
            async with self._events.turns:
                news = await self._stream.news()
            if not news and trio.current_time() - silent_since >= HEARTBEAT_S:
                news = _ALIVE
            if news:
                with trio.move_on_after(CUT_AFTER_S) as scope:
                    await send({"type": "http.response.body", "body": news, "more_body": True})
                if scope.cancelled_caught:
                    # Left without its end, the connection is closed.
                    return
                silent_since = trio.current_time()
            if not self._stream.ends:
                await self._events.board.next_tick()
        await send({"type": "http.response.body", "body": b""})


async def _until_left(receive: Receive, everything: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    everything.cancel()


class Events:
    """All streams.

    Attributes:
        open: the streams.
        turns: lets one of them look at a time.
    """

    def __init__(self, services: Services, status: Status) -> None:
        self._services, self._status = services, status
        self.board = services.board
        self.open: set[Stream] = set()
        self.turns = trio.StrictFIFOLock()

    def follow(self, query: LimitsQuery) -> Response:
        """Answer with a stream, unless there are too many."""
        if len(self.open) >= MAX_STREAMS:
            detail = f"{MAX_STREAMS} streams are open, which is the maximum; close one, or try again later"
            return problem(503, detail, headers={"retry-after": str(RETRY_AFTER_S)})
        return _EventResponse(Stream(self._services, self._status, board_query(query, self._services.live)), self)
