"""Decides on and counts the requests of connections that the compiled extension serves."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from limiter.counting.rejections import NUMBERS
from limiter.counting.repeats import RefusedIds, Repeats
from limiter.counting.seconds import Sender
from limiter.deciding.limits import Credit, Limits
from limiter.rules.resource import Resource
from proxy.deciding.batch import ConnectionInfo, Refuse, Request
from proxy.deciding.counting import Tally
from proxy.deciding.pipeline import Pipeline
from proxy.deciding.rate_limit import RateLimit, caller_of

if TYPE_CHECKING:
    from sluice_native import Callers, Resources


class Judge:
    """Decides on and counts requests in exactly the same way as the rate limiter and the tally.

    Attributes:
        stays: Returns whether the compiled extension may serve the connection under the current rules.
        learn: Takes a client's first header and its type. Returns the client's language, and whether the client changes
            message ids in retries. Returns None if Python must process the header.
        ids: Ids of recently refused messages. None if the client changes message ids in retries.
    """

    __slots__ = (
        *("_handler", "_limits", "_pipeline", "_tally", "all_ids", "bypassed", "connection", "ids", "is_exempt"),
        *("learn", "passed", "resources", "sender", "stays"),
    )

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        pipeline: Pipeline,
        handler: RateLimit,
        tally: Tally,
        resources: "Resources",
        connection: ConnectionInfo,
        sender: Sender,
    ) -> None:
        self._pipeline = pipeline
        self._handler = handler
        self._limits: Limits = handler.limits
        self._tally = tally
        self.resources = resources
        self.connection = connection
        self.sender = sender
        self.stays: Callable[[], bool] = bool
        self.learn: Callable[[bytes, int], tuple[str, bool] | None]
        self.all_ids = tally.ids
        self.ids: RefusedIds | None = tally.ids
        self.is_exempt = connection.exempt
        self.passed = NUMBERS["exempt" if connection.exempt else "admitted"]
        self.bypassed = NUMBERS["exempt" if connection.exempt else "bypassed"]

    def refresh(self) -> tuple[bool, bool, bool, "Callers | None"]:
        """Return ``stays()``, whether all rules only refuse, whether any rule limits bytes, and the scopes' limits."""
        limits = self._limits
        return self.stays(), limits.only_refuse, limits.limit_bytes, limits.callers(caller_of(self.connection))

    def identify(self, header: bytes, header_type: int) -> tuple[Sender, RefusedIds | None] | None:
        """Set and return ``sender`` and ``ids`` from a client's first header. Return None if ``learn`` does."""
        learned = self.learn(header, header_type)
        if learned is None:
            return None
        language, changes_ids = learned
        self.sender = self._tally.sender(self.connection.address, language)
        self.ids = None if changes_ids else self.all_ids
        return self.sender, self.ids

    def is_plain(self, resources: tuple[Resource, ...], producer_group: str) -> bool:
        """Return whether ``decide`` can only pass or refuse requests with these properties."""
        return self._limits.refuses(resources, caller_of(self.connection, producer_group))

    def decide(
        self, now_ns: int, resources: tuple[Resource, ...], producer_group: str, count: int, sizes: Sequence[int]
    ) -> list[tuple[int, Refuse | None]]:
        """Decide on ``count`` requests. Return the verdicts in order, as runs of (length, refusal or None).

        ``sizes`` is empty if no rule limits bytes.
        """
        caller = caller_of(self.connection, producer_group)
        spans: list[tuple[int, Refuse | None]] = []
        done = 0
        while done < count:
            some = sizes[done:]
            decision = self._limits.decide(now_ns, resources, caller, (1,) * (count - done), lambda: some)  # noqa: B023 - only called within decide
            spans.append((decision.admitted, None))
            end = decision.admitted + decision.alone if decision.alone else count - done
            if decision.stop is not None:
                stopped = end - decision.admitted
                spans.append((stopped, self._handler.refuse(decision.stop, caller.client, resources, stopped)))
            done += end
        return spans

    def count(  # noqa: PLR0917 - the compiled extension calls by position
        self,
        now_ns: int,
        resources: tuple[Resource, ...],
        producer_group: str,
        refuse: Refuse | None,
        is_bypassed: bool,  # noqa: FBT001 - as above
        amount: tuple[int, int, int],
        answers: int,
        repeats: tuple[int, int, int, int] | None,
    ) -> None:
        self._tally.count_alike(
            *(now_ns, resources, self.sender, refuse, producer_group, answers, amount),
            repeats=None if repeats is None else Repeats(*repeats),
            passed="exempt" if self.is_exempt else "bypassed" if is_bypassed else "admitted",
        )

    def grant(self, now_ns: int, request: Request) -> bool:
        """Grant a request for credit if the full amount is available. Return whether it was granted."""
        caller = caller_of(self.connection, consumes=request.consumes, refusable=False, asks=request.asks)
        credit = Credit(request.messages, request.most, request.size_bytes)
        try:
            return self._limits.grant_at_once(now_ns, request.resources, caller, credit)
        except Exception:  # noqa: BLE001 - the pipeline asks again and handles the error
            return False

    def failed(self, error: Exception, requests: int) -> None:
        self._pipeline.bypass(self._handler, error, requests)


def judge_of(
    pipeline: Pipeline, tally: Tally, resources: "Resources", connection: ConnectionInfo, sender: Sender
) -> Judge | None:
    """Create a connection's judge. Return None if there are handlers other than the rate limiter."""
    handler = pipeline.only
    if type(handler) is not RateLimit:
        return None
    return Judge(pipeline, handler, tally, resources, connection, sender)
