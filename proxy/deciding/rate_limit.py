"""The rate limiter as a handler. It checks the limits once for each group of similar requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import structlog
import trio
from msgspec import Meta

from limiter.deciding.limits import Caller, Credit, Decision, Denial, Held, Limits
from limiter.rules.resource import Resource
from limiter.waiting.holding import Bounds
from proxy.common.log_rate import LogRate
from proxy.deciding.batch import (
    LATER,
    NO_VERDICTS,
    Asks,
    Batch,
    ConnectionInfo,
    Grant,
    Group,
    Hold,
    Later,
    Refuse,
    Request,
    Shadow,
    Ticket,
    Verdict,
    Verdicts,
    drop_tickets,
)
from proxy.deciding.pipeline import Fails, Handler, HandlerPlugin, HandlerServices

_DEFAULTS = Bounds()
_LOG_LINES_PER_S: Final = 10

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimitOptions:
    """Bounds on requests held by rules with action ``delay``. Further requests are refused immediately.

    Attributes:
        max_held: maximum number of requests held by all connections together.
        max_held_bytes: maximum size of requests held by all connections together, in bytes.
        max_held_per_connection: maximum number of requests held by one connection.
        max_held_bytes_per_connection: maximum size of requests held by one connection, in bytes.
    """

    max_held: Annotated[int, Meta(ge=0)] = _DEFAULTS.requests
    max_held_bytes: Annotated[int, Meta(ge=0)] = _DEFAULTS.size_bytes
    max_held_per_connection: Annotated[int, Meta(ge=0)] = _DEFAULTS.requests_per_connection
    max_held_bytes_per_connection: Annotated[int, Meta(ge=0)] = _DEFAULTS.size_bytes_per_connection


class _HeldRequest(Held):
    def __init__(
        self, handler: "RateLimit", connection: int, request: Request, caller: Caller, credit: Credit | None = None
    ) -> None:
        super().__init__(
            request.resources,
            caller,
            request.messages,
            request.size_bytes if credit is None else 0,
            connection=connection,
            order_key=request.order_key if credit is None else None,
            since_ns=request.since_ns,
            credit=credit,
        )
        self.handler = handler
        self.request = request
        self.ticket = Ticket(self.dropped)

    @property
    def verdict(self) -> Hold:
        return Hold(self.resource, self.rule.name, self.ticket, self.spooled)

    def dropped(self) -> None:
        self.handler.holding.drop(self)
        # Heaps may keep this object for a while. It must not keep the session alive.
        del self.request

    def resolved(self, stop: Denial | None) -> None:
        if stop is not None:
            self.ticket.resolve(self.handler.refuse(stop, self.caller.client, self.resources))
        elif self.credit is not None:
            self.request.messages = self.messages
            self.ticket.resolve(None)
        else:
            denial = self.shadow_denials[0] if self.shadow_denials else None
            self.ticket.resolve(None, None if denial is None else Shadow(denial.resource, denial.rule))


class RateLimit(Handler):
    fails: ClassVar[Fails] = "open"
    # Limits and tickets are used on the event loop only.
    thread_safe: ClassVar[bool] = False

    def __init__(self, options: RateLimitOptions, services: HandlerServices) -> None:
        self.limits: Limits = services.limits
        self._now_ns = services.now_ns
        self._log_rate = LogRate(_LOG_LINES_PER_S)
        self._woken = trio.Event()
        self.holding = services.limits.holding
        self.holding.bounds = Bounds(
            options.max_held,
            options.max_held_bytes,
            options.max_held_per_connection,
            options.max_held_bytes_per_connection,
        )
        self.holding.earlier = self._wake_up

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        if batch.connection.exempt:
            return NO_VERDICTS
        verdicts: dict[int, Verdict] = {}
        connection = batch.connection
        try:
            begun: set[tuple[tuple[Resource, ...], str]] = set()
            for group in batch.groups:
                self._decide(batch, group, now_ns, verdicts, begun)
            for charge in batch.charges:
                consumes = charge.consumes
                # A charge that corrects credit is not for a response. Its messages were charged as a request.
                caller = caller_of(
                    connection,
                    charge.producer_group,
                    consumes=consumes,
                    by_answer=consumes and charge.counts,
                    asks=charge.asks,
                )
                self.limits.charge(
                    now_ns,
                    charge.resources,
                    caller,
                    charge.messages,
                    charge.size_bytes,
                    0 if charge.counts else charge.messages,
                )
        except BaseException:
            drop_tickets(verdicts)
            raise
        return verdicts or NO_VERDICTS

    def _decide(
        self,
        batch: Batch,
        group: Group,
        now_ns: int,
        verdicts: dict[int, Verdict],
        begun: set[tuple[tuple[Resource, ...], str]],
    ) -> None:
        """Decide on one group. ``begun`` contains the queues that this batch has started to spool."""
        connection, (request, indexes, messages) = batch.connection, group
        if batch.verdicts:
            # Do not charge requests that an earlier handler refused or that will be submitted again.
            left = [at for at, index in enumerate(indexes) if not isinstance(batch.verdicts.get(index), Refuse | Later)]
            indexes, messages = [indexes[at] for at in left], [messages[at] for at in left]
            if not indexes:
                return
        resources, refusable = request.resources, request.refusal != "impossible"
        caller = caller_of(
            connection,
            request.producer_group,
            consumes=request.consumes,
            by_answer=request.by_answer,
            refusable=refusable,
            asks=request.asks,
            may_wait=request.may_wait,
        )
        if request.most:
            verdict = self._grant(connection, request, caller, now_ns)
            if verdict is not None:
                verdicts[indexes[0]] = verdict
            return
        if not refusable and not request.may_wait:
            size_bytes = sum(batch.size_bytes(indexes))
            self.limits.charge(now_ns, resources, caller, sum(messages), size_bytes, requests=len(indexes))
            return
        if not refusable and self.holding.is_over(now_ns):
            if batch.came_back:
                # Keep them spooled: releasing all of them together would far exceed the limit.
                verdicts.update(dict.fromkeys(indexes, LATER))
            return
        line = (resources, request.producer_group)
        if line in begun and request.order_key is None and not request.consumes:
            verdicts.update(dict.fromkeys(indexes, LATER))
            return
        leader = self.holding.previous_of_key(connection.id, request.order_key)
        if leader is not None:
            self._follow(batch, indexes, caller, leader, now_ns=now_ns, verdicts=verdicts)
            return
        while True:
            some = indexes
            decision = self.limits.decide(now_ns, resources, caller, messages, lambda: batch.size_bytes(some))  # noqa: B023 - only called within decide
            # A request that is refused for its size does not affect the requests after it.
            end = decision.admitted + decision.alone if decision.alone else len(indexes)
            if decision.stop is not None:
                stopped = indexes[decision.admitted : end]
                if decision.delays:
                    if self._hold(batch, stopped, caller, decision, now_ns=now_ns, verdicts=verdicts):
                        begun.add(line)
                else:
                    refuse = self.refuse(decision.stop, caller.client, resources, len(stopped))
                    verdicts.update(dict.fromkeys(stopped, refuse))
            for denial in decision.shadow_denials:
                shadow = Shadow(denial.resource, denial.rule)
                for index in indexes[denial.first : denial.end]:
                    verdicts.setdefault(index, shadow)
            if end == len(indexes):
                return
            indexes, messages = indexes[end:], messages[end:]

    def _grant(self, connection: ConnectionInfo, request: Request, caller: Caller, now_ns: int) -> Verdict | None:
        credit = Credit(request.messages, request.most, request.size_bytes)
        granted = self.limits.grant(now_ns, request.resources, caller, credit)
        if granted.messages:
            return None if granted.messages == request.most else Grant(granted.messages)
        held = _HeldRequest(self, connection.id, request, caller._replace(refusable=False), credit)
        self.limits.delays.hold_credit(now_ns, granted, held)
        return held.verdict

    def _follow(
        self,
        batch: Batch,
        indexes: Sequence[int],
        caller: Caller,
        leader: Held,
        *,
        now_ns: int,
        verdicts: dict[int, Verdict],
    ) -> None:
        if not caller.refusable:
            verdicts.update(dict.fromkeys(indexes, LATER))
            return
        may_spool = batch.spools and not caller.consumes
        for at, index in enumerate(indexes):
            held = _HeldRequest(self, batch.connection.id, batch.requests[index], caller)
            if may_spool and self.limits.delays.spools_behind(held, leader):
                verdicts.update(dict.fromkeys(indexes[at:], LATER))
                return
            stop = self.limits.delays.follow(now_ns, held, leader)
            verdicts[index] = held.verdict if stop is None else self.refuse(stop, caller.client, held.resources)

    def _hold(
        self,
        batch: Batch,
        stopped: Sequence[int],
        caller: Caller,
        decision: Decision,
        *,
        now_ns: int,
        verdicts: dict[int, Verdict],
    ) -> bool:
        """Hold the requests, and return whether spooling starts.

        If one is refused, refuse those after it too, unless it was too large or had waited too long.
        """
        may_spool = batch.spools and not caller.consumes
        for at, index in enumerate(stopped):
            held = _HeldRequest(self, batch.connection.id, batch.requests[index], caller)
            behind = len(stopped) - at - 1
            stop = self.limits.delays.hold(now_ns, decision, held, behind, may_spool=may_spool)
            if stop is None:
                verdicts[index] = held.verdict
                if caller.refusable and not held.spooled:
                    continue
                verdicts.update(dict.fromkeys(stopped[at + 1 :], LATER))
                return held.spooled
            if stop.most is not None or held.since_ns:
                # The requests after it may still pass.
                verdicts[index] = self.refuse(stop, caller.client, held.resources)
                continue
            refuse = self.refuse(stop, caller.client, held.resources, 1 + behind)
            for refused in stopped[at:]:
                verdicts[refused] = refuse
            return False
        return False

    def refuse(self, stop: Denial, client: str, resources: Sequence[Resource], times: int = 1) -> Refuse:
        """Create the verdict for ``times`` refused requests. Log at most one refusal per second and rule."""
        name = stop.rule.name
        not_logged = self._log_rate.take(name, self._now_ns() / 1e9, times)
        if not_logged is not None:
            _log.warning(
                "limit exceeded; requests refused",
                rule=name,
                resource=str(stop.resource),
                client=client,
                **_others(stop.resource, resources),
                **(
                    {"wait_us": stop.wait_us}
                    if stop.most is None
                    else {"max_per_request": f"{stop.most} {stop.most_of}"}
                ),
                not_logged=not_logged,
            )
        return Refuse(stop.resource, name, stop.wait_us, stop.rule.busy_code, stop.most, stop.most_of)

    async def run(self) -> None:
        while True:
            self._woken = trio.Event()
            due_ns = self.holding.next_due_ns()
            if due_ns is None:
                await self._woken.wait()
                continue
            wait_ns = due_ns - self._now_ns()
            if wait_ns > 0:
                with trio.move_on_after(wait_ns / 1e9):
                    await self._woken.wait()
            else:
                await trio.lowlevel.checkpoint()
                self.holding.release(self._now_ns())

    def drain(self, ends_ns: int) -> None:
        self.holding.drain(ends_ns)

    def _wake_up(self) -> None:
        self._woken.set()


def caller_of(
    connection: ConnectionInfo,
    producer_group: str = "",
    *,
    consumes: bool = False,
    by_answer: bool = False,
    refusable: bool = True,
    asks: Asks = "all",
    may_wait: bool = True,
) -> Caller:
    address, listener, scopes = connection.address, connection.scope, connection.scopes
    return Caller(address, producer_group, listener, consumes, by_answer, refusable, scopes, asks, may_wait)


def _others(limited: Resource, resources: Sequence[Resource]) -> dict[str, str]:
    own = ", ".join(str(resource) for resource in resources)
    return {} if own == str(limited) else {"for": own}


PLUGIN = HandlerPlugin("rate_limit", RateLimitOptions, RateLimit)
