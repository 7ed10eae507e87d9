"""``rules`` and ``explain``: the rules in force, and why a request is limited as it is."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from admin.api import examples
from admin.api.answers import answer, encode_page, encoded, unchanged
from admin.api.conditions import has_it
from admin.api.document import done, not_done
from admin.api.limits import check_kind
from admin.api.parameters import CONDITIONAL_GET, ExplainQuery, RulesQuery
from admin.api.routing import router
from admin.api.services import Services
from admin.board.clock import Clock
from admin.rule_fields import fields_of
from admin.wire import RulePage, RuleRow
from limiter.rule import Rule, RuleKey
from limiter.rules import RuleSet
from proxy.pace import Pace
from proxy.question import Explanation, Question


def routes(services: Services) -> APIRouter:
    """Make the routes."""
    rules = router("rules")
    in_order = _InOrder(services.board.clock)

    @rules.get(
        "/rules",
        summary="List the rules in force",
        description="In the order in which they are tried: exact names, patterns, defaults, totals; last those whose"
        " hours have not come.",
        responses={**done(RulePage, "Some rules.", examples.RULES, etag=True, may_have_it=True), **not_done()},
        openapi_extra=CONDITIONAL_GET,
    )
    async def list_rules(request: Request, query: Annotated[RulesQuery, Query()]) -> Response:
        check_kind(query.kind, services.live)
        etag = services.live.etag
        rule_set = services.live.rule_set
        ordered = in_order.of(rule_set)
        # What holds changes by the hour alone, too.
        if not ordered.timed and has_it(request, etag):
            return unchanged(etag)
        pace = Pace()
        chosen: list[tuple[int, Rule]] = []
        for position, rule in enumerate(ordered.rules):
            if not query.kind or rule.kind == query.kind:
                chosen.append((position, rule))
            await pace.keep()
        page = RulePage(
            rows=tuple(
                RuleRow(
                    position=position,
                    kind=rule.kind,
                    pattern=rule.pattern,
                    shared=rule.shared,
                    rule=rule.name,
                    limit=fields_of(rule),
                    limit_text=rule.limit_text,
                    action=rule.action,
                    hours=None if rule.hours is None else str(rule.hours),
                    source=rule.source,
                    holds=rule.key in ordered.holding,
                )
                for position, rule in chosen[query.offset : query.offset + query.limit]
            ),
            total=len(chosen),
            offset=query.offset,
            limit=query.limit,
            rule_set_version=rule_set.version,
        )
        return encoded(await encode_page(page, "rows"), etag=etag)

    @rules.get(
        "/explain",
        summary="Say why a request is limited as it is",
        description="What would limit it, in the order in which it is asked, with the live state of each limit.",
        responses={**done(Explanation, "What limits it.", examples.EXPLANATION), **not_done()},
    )
    async def explain(query: Annotated[ExplainQuery, Query()]) -> Response:
        return answer(await services.data_path.explain(Question(**query.model_dump())))

    return rules


@dataclass(frozen=True, slots=True)
class _Ordered:
    """The rules of one set at one moment.

    Attributes:
        rules: as they are tried.
        holding: the keys of those that take part.
        timed: some have hours.
    """

    rules: tuple[Rule, ...]
    holding: frozenset[RuleKey]
    timed: bool


class _InOrder:
    """Remembers the order of the last rule set; one with hours is looked at again every minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: tuple[RuleSet, datetime, _Ordered] | None = None

    def of(self, rule_set: RuleSet) -> _Ordered:
        """Return the rules in their order."""
        now = self._clock.utc()
        minute = now.replace(second=0, microsecond=0)
        known = self._known
        if known is not None and known[0] is rule_set and (known[1] == minute or not known[2].timed):
            return known[2]
        in_force = rule_set.at(now)
        rules = in_force.in_match_order
        tried = frozenset(rule.key for rule in in_force.tried)
        ordered = _Ordered(rules, tried, any(rule.hours is not None for rule in rules))
        self._known = (rule_set, minute, ordered)
        return ordered
