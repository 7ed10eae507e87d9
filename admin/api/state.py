"""``state`` and ``whoami``: how Sluice is, in one answer, and who asks."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from admin.api import examples
from admin.api.answers import answer
from admin.api.document import done, not_done
from admin.api.parameters import Empty
from admin.api.routing import router
from admin.api.services import Services, author_of
from admin.board.clock import NS_PER_S
from admin.live.model import LimitEntry, SwitchEntry
from admin.version import sluice_version
from admin.wire import (
    Edits,
    Expiring,
    Held,
    LaneState,
    Limiters,
    ListenerReach,
    State,
    Totals,
    Verdicts,
    WhoAmI,
)
from proxy.pace import Pace
from proxy.snapshot import Snapshot


class Status:
    """Makes the state of all that the services know.

    Args:
        services: what is asked.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.board.clock
        self._started_ns = self._clock.now_ns()
        self._started_at = self._clock.iso_now()
        self._version = sluice_version()
        self._edits: tuple[Sequence[LimitEntry], str, Edits] | None = None

    async def state(self) -> State:
        """Return how Sluice is; its figures are a second old at most."""
        services, board = self._services, self._services.board
        snapshot = await board.fresh()
        switches = services.live.switches()
        traffic = board.traffic
        return State(
            version=self._version,
            instance=services.instance,
            started_at=self._started_at,
            uptime_s=round((self._clock.now_ns() - self._started_ns) / NS_PER_S, 1),
            limiting=services.live.rule_set.enabled,
            off=tuple(switch.kind for switch in switches if not switch.limiting),
            draining=snapshot.draining,
            listeners=self._listeners(snapshot),
            totals=Totals(
                messages=Verdicts(*traffic.messages),
                requests=Verdicts(*traffic.requests),
                connections=snapshot.connections_total,
                connections_open=sum(listener.connections for listener in snapshot.listeners),
                bytes=snapshot.bytes_total,
                frames=snapshot.frames_total,
                closed=snapshot.closed_total,
                undecodable=snapshot.undecodable_total,
            ),
            rates=traffic.rates(),
            history=traffic.history(board.points),
            bypassed=traffic.bypassed(snapshot),
            lanes=tuple(
                LaneState(handler, depth.queued, depth.capacity, depth.late_lanes)
                for handler, depth in snapshot.lanes.items()
            ),
            held=Held(
                snapshot.held_requests,
                snapshot.held_bytes,
                {str(bound): n for bound, n in snapshot.hold_refused.items()},
            ),
            limiters=Limiters(snapshot.live_limiters, snapshot.evicted_total, snapshot.overflowed_total),
            persistence=services.live.persistence,
            edits=await self._standing(switches),
            rejection_log=services.rejection_log(),
            warnings=tuple(services.warnings()),
            rule_set_version=services.live.rule_set.version,
            etag=services.live.etag,
        )

    def _listeners(self, snapshot: Snapshot) -> tuple[ListenerReach, ...]:
        reaches = self._services.board.reaches
        return tuple(
            ListenerReach(
                name=listener.name,
                listen=listener.listen,
                broker=listener.broker,
                connections=listener.connections,
                reachable=None if (reach := reaches.get(listener.name)) is None else reach.error is None,
                error=None if reach is None else reach.error,
            )
            for listener in snapshot.listeners
        )

    async def _standing(self, switches: Sequence[SwitchEntry]) -> Edits:
        """Count the edits that stand, and find the one that ends next."""
        limits, etag = self._services.live.limits(), self._services.live.etag
        if self._edits is not None and self._edits[0] is limits and self._edits[1] == etag:
            return self._edits[2]
        standing = 0
        ends: list[tuple[str, str]] = []
        pace = Pace()
        for entry in limits:
            if entry.edit is not None:
                standing += 1
                if entry.edit.expires_at is not None:
                    ends.append((entry.edit.expires_at, f"limits/{entry.kind}/{entry.name}"))
            await pace.keep()
        for switch in switches:
            if switch.edit is not None:
                standing += 1
                if switch.edit.expires_at is not None:
                    ends.append((switch.edit.expires_at, f"switches/{switch.kind}"))
        first = min(ends, default=None)
        edits = Edits(standing, None if first is None else Expiring(first[1], first[0]))
        self._edits = (limits, etag, edits)
        return edits


def routes(status: Status) -> APIRouter:
    """Make the routes."""
    state = router("state")

    @state.get(
        "/state",
        summary="Say how Sluice is",
        description="Listeners and their brokers, traffic, what passes unlimited, what is held, where edits are kept.",
        responses={**done(State, "The state.", examples.STATE), **not_done()},
    )
    async def get_state(_query: Empty) -> Response:
        return answer(await status.state())

    @state.get(
        "/whoami",
        summary="Say who asks",
        description="The token's name and role.",
        responses={**done(WhoAmI, "Who asks.", examples.WHOAMI), **not_done()},
    )
    async def whoami(request: Request, _query: Empty) -> Response:
        author = author_of(request)
        known = request.state
        return answer(WhoAmI(author.name, known.role, author.address, authentication=known.authentication))

    return state
