"""Computes per-second rates for each open connection from samples that are taken only while a client is watching."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
import trio

from admin.common.columns import ConnectionColumn, Order
from admin.stats.rows import NS_PER_S, part_in_order
from admin.wire import DEFAULT_PAGE, ConnectionPage, MostRows, Offset, sentences
from proxy.common.clock import Clock
from proxy.common.threads import on_thread
from proxy.control import DataPath
from proxy.flow.credit import STATES
from proxy.stats.snapshot import ConnectionState

SAMPLE_NS: Final = 5 * NS_PER_S
#: If samples are further apart, their rates are out of date.
_TOO_OLD_NS: Final = 6 * SAMPLE_NS
#: How long sampling continues after a query.
_WATCHED_NS: Final = 12 * SAMPLE_NS


class ConnectionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the connections to list.

    Attributes:
        search: text to find in the peer, client id, user, certificate, listener or broker, or in a resource or link.
        resource: exact resource that connections must use, as ``kind:name``. Empty for all connections.
        sort: column to sort by.
        order: smallest or largest first.
        offset: number of rows to skip.
        limit: maximum number of rows.
    """

    search: Annotated[str, msgspec.Meta(max_length=255)] = ""
    resource: str = ""
    sort: ConnectionColumn = "id"
    order: Order = "asc"
    offset: Offset = 0
    limit: MostRows = DEFAULT_PAGE


class ConnectionStats:
    """Keeps a sample of the open connections. It is refreshed before use if it is more than a few seconds old."""

    def __init__(self, data_path: DataPath, clock: Clock) -> None:
        self._data_path, self._clock = data_path, clock
        self._lock = trio.Lock()
        self._states: dict[int, ConnectionState] = {}
        self._sampled_ns: int | None = None
        self._asked_ns: int | None = None

    async def page(self, query: ConnectionQuery) -> ConnectionPage:
        self._asked_ns = self._clock.now_ns()
        await self._refresh()
        return await on_thread(self._page, list(self._states.values()), query)

    def _page(self, states: list[ConnectionState], query: ConnectionQuery) -> ConnectionPage:
        if query.search:
            search = query.search.casefold()
            states = [each for each in states if _holds(each, search)]
        if query.resource:
            states = [each for each in states if _is_for(each, query.resource)]
        part = part_in_order(states, KEYS[query.sort], query.offset, query.limit, descending=query.order == "desc")
        return ConnectionPage(
            rows=tuple(map(_said, part)),
            total=len(states),
            offset=query.offset,
            limit=query.limit,
            sampled_at=self._clock.iso_of(self._sampled_ns or self._clock.now_ns()),
        )

    def forget(self, connection_id: int) -> None:
        self._states.pop(connection_id, None)

    async def keep_sampling(self) -> None:
        """Take a sample if one is due and a client is watching."""
        if self._asked_ns is not None and self._clock.now_ns() - self._asked_ns < _WATCHED_NS:
            await self._refresh()

    async def _refresh(self) -> None:
        async with self._lock:
            now_ns = self._clock.now_ns()
            if self._sampled_ns is not None and now_ns - self._sampled_ns < SAMPLE_NS:
                return
            states = await self._data_path.connections()
            age_ns = _TOO_OLD_NS if self._sampled_ns is None else now_ns - self._sampled_ns
            before = self._states if age_ns < _TOO_OLD_NS else {}
            self._states = await on_thread(_with_rates, states, before, age_ns / NS_PER_S)
            self._sampled_ns = now_ns


def _with_rates(
    states: Iterable[ConnectionState], before: Mapping[int, ConnectionState], seconds: float
) -> dict[int, ConnectionState]:
    return {
        now.id: now
        if (last := before.get(now.id)) is None
        else msgspec.structs.replace(
            now,
            bytes_per_s={
                peer: round((total - last.bytes_total.get(peer, 0)) / seconds, 1)
                for peer, total in now.bytes_total.items()
            },
            requests_per_s=round((now.requests_total - last.requests_total) / seconds, 2),
            refused_per_s=round((now.refused_total - last.refused_total) / seconds, 2),
        )
        for now in states
    }


def _said(state: ConnectionState) -> ConnectionState:
    stage, channels = sentences.stage(state.stage), tuple(map(sentences.stage, state.channels))
    return msgspec.structs.replace(state, stage=stage, channels=channels)


def _holds(state: ConnectionState, search: str) -> bool:
    client = state.client
    texts = (state.peer, client.id, client.user, state.certificate, state.listener, state.broker, *state.resources)
    links = (text for link in state.links for text in (link.name, link.resource))
    return any(search in text.casefold() for text in (*texts, *links))


def _is_for(state: ConnectionState, resource: str) -> bool:
    return resource in state.resources or any(link.resource == resource for link in state.links)


KEYS: Final[Mapping[str, Callable[[ConnectionState], Any]]] = {
    "id": lambda state: state.id,
    "peer": lambda state: state.peer,
    "client": lambda state: state.client.id,
    "listener": lambda state: state.listener,
    "age": lambda state: state.age_s,
    "bytes": lambda state: sum((state.bytes_per_s or {}).values()),
    "requests": lambda state: state.requests_per_s or 0.0,
    "refused": lambda state: state.refused_per_s or 0.0,
    "in_flight": lambda state: state.in_flight,
    "state": lambda state: STATES.index(state.stage.state),
    "spooled": lambda state: state.spooled,
}
