"""How messages are confirmed of which rules say that their consumers do that: what the sessions of each broker tell.

Two brokers may have destinations of one name. As everything that is counted by name, they are shown as one.
"""

from collections.abc import Iterable

import msgspec

from proxy.stats.snapshot import ConfirmState

_OTHER = "_other"


def by_destination(states: Iterable[ConfirmState]) -> tuple[ConfirmState, ...]:
    """Return one state for each destination, in the order in which they first come."""
    found: dict[tuple[str, str], ConfirmState] = {}
    for state in states:
        other = found.get((state.kind, state.name))
        found[state.kind, state.name] = state if other is None else _together(other, state)
    return tuple(found.values())


def told_apart(states: Iterable[ConfirmState], most: int) -> tuple[ConfirmState, ...]:
    """Return the first of some states, and those beyond as one of the name ``_other`` for each kind."""
    return by_destination(
        state if number < most else msgspec.structs.replace(state, name=_OTHER) for number, state in enumerate(states)
    )


def _together(one: ConfirmState, other: ConfirmState) -> ConfirmState:
    by_broker = one if one.mode == "broker" else other
    return ConfirmState(
        kind=one.kind,
        name=one.name,
        mode=by_broker.mode,
        reason=by_broker.reason,
        pending=one.pending + other.pending,
        oldest_ms=max(one.oldest_ms, other.oldest_ms),
        window=one.window + other.window,
        after_consume_total=one.after_consume_total + other.after_consume_total,
        broker_total=one.broker_total + other.broker_total,
        persisted_total=one.persisted_total + other.persisted_total,
        nacked_total=one.nacked_total + other.nacked_total,
    )
