"""How fast each open connection is: two looks at the counters, some seconds apart, while somebody is interested."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
import trio

from admin import wire
from admin.common.clock import Clock
from admin.stats.rows import NS_PER_S, part_in_order
from admin.wire import sentences
from proxy.common.threads import on_thread
from proxy.control import DataPath
from proxy.flow.credit import STATES
from proxy.stats.snapshot import ConnectionState, Direction

SAMPLE_NS: Final = 5 * NS_PER_S
#: Samples further apart say nothing about now.
_TOO_OLD_NS: Final = 6 * SAMPLE_NS
#: Sampling goes on for so long after somebody has looked.
_WATCHED_NS: Final = 12 * SAMPLE_NS


#: Fields that a row has as the data path has them.
_SHARED: Final = frozenset(ConnectionState.__struct_fields__).intersection(wire.ConnectionRow.__struct_fields__) - {
    "stage",
    "channels",
}


class ConnectionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which connections are asked for.

    Attributes:
        search: part of the peer, client id, user, certificate, listener, a resource or link.
        resource: only connections with exactly this resource, as ``kind:name``; empty: all.
        sort: the column to sort by.
        order: smallest first, or largest first.
        offset: rows to skip.
        limit: most rows.
    """

    search: Annotated[str, msgspec.Meta(max_length=255)] = ""
    resource: str = ""
    sort: wire.ConnectionColumn = "id"
    order: wire.Order = "asc"
    offset: wire.Offset = 0
    limit: wire.MostRows = wire.DEFAULT_PAGE


class _Seen:
    """A connection with its rates."""

    __slots__ = ("bytes_per_s", "refused_per_s", "requests_per_s", "state")

    def __init__(self, state: ConnectionState, before: ConnectionState | None, seconds: float) -> None:
        self.state = state
        self.bytes_per_s: Mapping[Direction, float] | None = None
        self.requests_per_s: float | None = None
        self.refused_per_s: float | None = None
        if before is not None:
            self.bytes_per_s = {
                peer: round((total - before.bytes_total.get(peer, 0)) / seconds, 1)
                for peer, total in state.bytes_total.items()
            }
            self.requests_per_s = round((state.requests_total - before.requests_total) / seconds, 2)
            self.refused_per_s = round((state.refused_total - before.refused_total) / seconds, 2)


class ConnectionStats:
    """The open connections as they were a few seconds ago at most.

    Args:
        data_path: what is asked.
        clock: tells the time.
    """

    def __init__(self, data_path: DataPath, clock: Clock) -> None:
        self._data_path, self._clock = data_path, clock
        self._lock = trio.Lock()
        self._seen: dict[int, _Seen] = {}
        self._sampled_ns: int | None = None
        self._asked_ns: int | None = None

    async def page(self, query: ConnectionQuery) -> wire.ConnectionPage:
        """Return some of the connections."""
        self._asked_ns = self._clock.now_ns()
        await self.refresh()
        return await on_thread(self._page, list(self._seen.values()), query)

    def _page(self, seen: list[_Seen], query: ConnectionQuery) -> wire.ConnectionPage:
        if query.search:
            search = query.search.casefold()
            seen = [each for each in seen if _holds(each.state, search)]
        if query.resource:
            seen = [each for each in seen if _is_of(each.state, query.resource)]
        now_ns = self._clock.now_ns()
        part = part_in_order(seen, KEYS[query.sort], query.offset, query.limit, descending=query.order == "desc")
        return wire.ConnectionPage(
            rows=tuple(self._row(each, now_ns) for each in part),
            total=len(seen),
            offset=query.offset,
            limit=query.limit,
            sampled_at=self._clock.iso_of(self._sampled_ns or now_ns),
        )

    def forget(self, connection_id: int) -> None:
        """Leave out a connection that was closed."""
        self._seen.pop(connection_id, None)

    async def keep_sampling(self) -> None:
        """Take a sample if it is time and somebody has looked of late."""
        if self._asked_ns is not None and self._clock.now_ns() - self._asked_ns < _WATCHED_NS:
            await self.refresh()

    async def refresh(self) -> None:
        """Take a sample if the last one is too old."""
        async with self._lock:
            now_ns = self._clock.now_ns()
            if self._sampled_ns is not None and now_ns - self._sampled_ns < SAMPLE_NS:
                return
            states = await self._data_path.connections()
            age_ns = _TOO_OLD_NS if self._sampled_ns is None else now_ns - self._sampled_ns
            before = self._seen if age_ns < _TOO_OLD_NS else {}
            seen = await on_thread(_seen, states, before, age_ns / NS_PER_S)
            self._seen, self._sampled_ns = seen, now_ns

    def _row(self, seen: _Seen, now_ns: int) -> wire.ConnectionRow:
        state = seen.state
        shared: dict[str, Any] = {name: getattr(state, name) for name in _SHARED}
        return wire.ConnectionRow(
            **shared,
            opened_at=self._clock.iso_of(state.opened_ns),
            age_s=round((now_ns - state.opened_ns) / NS_PER_S, 1),
            bytes_per_s=seen.bytes_per_s,
            requests_per_s=seen.requests_per_s,
            refused_per_s=seen.refused_per_s,
            stage=sentences.stage(state.stage),
            channels=tuple(map(sentences.stage, state.channels)),
        )


def _seen(states: Iterable[ConnectionState], before: Mapping[int, _Seen], seconds: float) -> dict[int, _Seen]:
    lasts = ((state, before.get(state.id)) for state in states)
    return {state.id: _Seen(state, None if last is None else last.state, seconds) for state, last in lasts}


def _holds(state: ConnectionState, search: str) -> bool:
    client = state.client
    texts = (state.peer, client.id, client.user, state.certificate, state.listener, state.broker, *state.resources)
    links = (text for link in state.links for text in (link.name, link.resource))
    return any(search in text.casefold() for text in (*texts, *links))


def _is_of(state: ConnectionState, resource: str) -> bool:
    return resource in state.resources or any(link.resource == resource for link in state.links)


#: Samples hold connections by their age, which is the order of their ids.
KEYS: Final[Mapping[str, Callable[[_Seen], Any]]] = {
    "id": lambda seen: seen.state.id,
    "peer": lambda seen: seen.state.peer,
    "client": lambda seen: seen.state.client.id,
    "listener": lambda seen: seen.state.listener,
    "age": lambda seen: -seen.state.opened_ns,
    "bytes": lambda seen: sum((seen.bytes_per_s or {}).values()),
    "requests": lambda seen: seen.requests_per_s or 0.0,
    "refused": lambda seen: seen.refused_per_s or 0.0,
    "in_flight": lambda seen: seen.state.in_flight,
    # The more far-reaching, the larger.
    "state": lambda seen: STATES.index(seen.state.stage.state),
    "spooled": lambda seen: seen.state.spooled,
}
