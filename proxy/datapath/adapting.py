"""Adjusts adaptive limits to the load on their brokers.

If an error occurs, the listener's adaptive limit is lifted until a new controller sets one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from limiter.adaptive.controller import STEP_NS, BrokerSeen, Controller
from limiter.buckets.adaptive import AdaptiveLimiter
from limiter.deciding.limits import Limits
from limiter.rules.rule import Rule
from proxy.common.log_rate import LogRate
from proxy.stats.snapshot import MAX_ADAPTIVE_NAMES, AdaptiveName, AdaptivePoint, AdaptiveState

_log = structlog.get_logger(__name__)

_NS: Final = 1_000_000_000
_HISTORY_POINTS: Final = 600
_LOG_EVERY_NS: Final = 10 * _NS
_NOTHING: Final = BrokerSeen(0, 0, (), 0, blocked=False)


@dataclass(slots=True)
class _Followed:
    limiter: AdaptiveLimiter
    controller: Controller
    bounds: tuple[float, float | None]
    point_ns: int  # time of the last point in the history
    passed: int = 0  # messages passed since ``point_ns``
    unanswered: int = 0  # at the last step
    logged_ns: int = 0
    not_logged: int = 0
    history: deque[AdaptivePoint] = field(default_factory=lambda: deque(maxlen=_HISTORY_POINTS))


class Adapting:
    """A data path's adaptive limits.

    Args:
        scopes: Names of the listeners, as they appear in rules.
        take_seen: Returns each listener's load signals since the last call.
    """

    def __init__(
        self,
        limits: Limits,
        scopes: Iterable[str],
        take_seen: Callable[[], Mapping[str, BrokerSeen]],
        *,
        now_ns: Callable[[], int],
        wall_ns: Callable[[], int],
    ) -> None:
        self.faults = 0
        self._limits, self._take_seen, self._now_ns, self._wall_ns = limits, take_seen, now_ns, wall_ns
        self._scopes = tuple(dict.fromkeys(scopes))
        self._followed: dict[str, _Followed] = {}
        self._rules_changed = trio.Event()
        self._log_rate = LogRate()

    def rules_changed(self) -> None:
        self._rules_changed.set()

    async def run(self) -> None:
        """Adjust the adaptive limits every ``STEP_NS``. While there are none, wait for new rules."""
        while True:
            self._rules_changed = trio.Event()
            if self._step():
                await trio.sleep(STEP_NS / _NS)
            else:
                await self._rules_changed.wait()

    def _step(self) -> bool:
        now_ns = self._now_ns()
        seen: Mapping[str, BrokerSeen] | None = None
        for scope in self._scopes:
            try:
                limiter = self._limits.adaptive(scope, now_ns)
                if limiter is None:
                    self._followed.pop(scope, None)
                    continue
                seen = self._take_seen() if seen is None else seen
                self._follow(scope, limiter, seen.get(scope, _NOTHING), now_ns)
            except Exception as error:  # noqa: BLE001 - any error
                self._fail(scope, now_ns, error)
        return seen is not None or bool(self._followed)

    def _follow(self, scope: str, limiter: AdaptiveLimiter, seen: BrokerSeen, now_ns: int) -> None:
        followed, bounds = self._followed.get(scope), _bounds(limiter.rule)
        passed, is_holding = limiter.took()
        if followed is None or followed.limiter is not limiter:
            # Ignore the signals so far, because they cover an unknown period.
            self._followed[scope] = _Followed(limiter, Controller(*bounds, now_ns), bounds, now_ns)
            return
        if followed.bounds != bounds:
            followed.bounds, followed.controller = bounds, Controller(*bounds, now_ns)
        before = limiter.limit_per_s
        limit = followed.controller.step(now_ns, seen, is_holding)
        answerable = seen.answers + seen.unanswered - followed.unanswered
        followed.unanswered = seen.unanswered
        limiter.follow(now_ns, limit, max(0, min(answerable, seen.answers + passed)))
        if limit != before:
            self._log_move(scope, followed, before, now_ns)
        if limit is None and before is not None:
            self._limits.holding.recheck_all_soon(now_ns)
        followed.passed += passed
        if now_ns - followed.point_ns >= _NS:
            self._remember(followed, now_ns)

    def _fail(self, scope: str, now_ns: int, error: Exception) -> None:
        self.faults += 1
        followed = self._followed.get(scope)
        if followed is not None:
            followed.controller = Controller(*followed.bounds, now_ns)
            with suppress(Exception):
                followed.limiter.follow(now_ns, None)
        not_logged = self._log_rate.take(("fault", scope), now_ns / _NS)
        if not_logged is not None:
            _log.error(
                "adaptive limit reset after an error; inactive until the next overload",
                listener=scope,
                not_logged=not_logged,
                exc_info=error,
            )

    def _log_move(self, scope: str, followed: _Followed, before: float | None, now_ns: int) -> None:
        controller, limit = followed.controller, followed.limiter.limit_per_s
        if before is None or limit is None:
            # Start and end have separate keys, so that both are logged.
            is_due = self._log_rate.take((scope, limit is None), now_ns / _NS) is not None
        else:
            is_due = now_ns - followed.logged_ns >= _LOG_EVERY_NS
        if not is_due:
            followed.not_logged += 1
            return
        figures = {
            "limit_per_s": limit,
            "latency_ms": _in(1e6, controller.latency_ns),
            "usual_latency_ms": _in(1e6, controller.usual_latency_ns),
        }
        _log.info(
            f"adaptive limit {'ended' if limit is None else 'started' if before is None else 'changed'}",
            listener=scope,
            action=followed.limiter.rule.action,
            reason=controller.reason,
            **{key: round(figure, 1) for key, figure in figures.items() if figure is not None},
            not_logged=followed.not_logged,
        )
        followed.logged_ns, followed.not_logged = now_ns, 0

    def _remember(self, followed: _Followed, now_ns: int) -> None:
        controller, elapsed_s = followed.controller, (now_ns - followed.point_ns) / _NS
        refused_per_s = sum(each.asked_per_s - each.passed_per_s for each in followed.limiter.demands())
        followed.history.append(
            AdaptivePoint(
                self._wall_ns() // 1_000_000,
                controller.limit_per_s,
                _in(_NS, controller.latency_ns),
                followed.passed / elapsed_s,
                max(0.0, refused_per_s),
            )
        )
        followed.point_ns, followed.passed = now_ns, 0

    def states(self, *, whole: bool = True) -> tuple[AdaptiveState, ...]:
        return tuple(self._state(scope, followed, whole=whole) for scope, followed in self._followed.items())

    def _state(self, scope: str, followed: _Followed, *, whole: bool) -> AdaptiveState:
        limiter, controller = followed.limiter, followed.controller
        floor_per_s, ceiling_per_s = followed.bounds
        demands = limiter.demands()[:MAX_ADAPTIVE_NAMES] if whole else ()
        return AdaptiveState(
            listener=scope,
            limit_per_s=limiter.limit_per_s,
            floor_per_s=floor_per_s,
            ceiling_per_s=ceiling_per_s,
            action=limiter.rule.action,
            latency_s=_in(_NS, controller.latency_ns),
            usual_latency_s=_in(_NS, controller.usual_latency_ns),
            reason=controller.reason,
            names=tuple(
                AdaptiveName(each.key, each.asked_per_s, each.passed_per_s, each.share_per_s, each.weight)
                for each in demands
            ),
            history=tuple(followed.history) if whole else (),
        )


def _bounds(rule: Rule) -> tuple[float, float | None]:
    return rule.floor_per_s, rule.ceiling_per_s


def _in(unit_ns: float, figure_ns: int | None) -> float | None:
    return None if figure_ns is None else figure_ns / unit_ns
