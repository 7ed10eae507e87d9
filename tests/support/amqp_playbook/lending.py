"""A stand-in for a lent session's judge, with the session's decisions."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from limiter.compiled import COMPILED
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import ConnectionInfo, Refuse, Request, Verdict

if TYPE_CHECKING:
    from .driver import Driver

# They admit nothing, so that each publish reaches the judge.
ASKS = RuleSet([Rule(kind, "*", 0) for kind in ("queue", "exchange", "routing_key")])


class StandIn:
    """Stands for ``proxy.deciding.judge.Judge``.

    ``driver`` decides and records the questions. ``connection``: whose publishes it decides. None leaves them to
    Python.
    """

    sender = ids = None
    passed = bypassed = 0
    is_exempt = False

    def __init__(self, driver: "Driver") -> None:
        assert COMPILED is not None
        self.resources = Limits(ASKS).resources
        self.connection: ConnectionInfo | None = None
        self.stays: Callable[[], bool] = bool
        self._driver = driver

    def refresh(self) -> tuple[bool, bool, bool, None]:
        return self.stays(), True, True, None

    def decide(
        self, _now_ns: int, resources: tuple[Resource, ...], _group: str, _count: int, sizes: Sequence[int]
    ) -> list[tuple[int, Verdict | None]]:
        spans: list[tuple[int, Verdict | None]] = []
        for size_bytes in sizes:
            request = Request(resources, 1, size_bytes, "", "answered", None, None)
            self._driver.requests.append(request)
            verdict = self._driver.decide(request)
            assert verdict is None or isinstance(verdict, Refuse)
            spans.append((1, verdict))
        return spans

    def count(self, *_told: Any) -> None:
        """Count nothing."""

    def failed(self, error: Exception, _requests: int) -> None:
        raise error
