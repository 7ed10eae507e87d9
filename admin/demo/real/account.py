"""What the demo says: heading, what was counted where, the account at the end. Nothing is sent or printed here."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric
from rich.console import Group, RenderableType
from rich.text import Text

from admin.common.tables import Rows
from admin.config.addresses import Endpoint
from admin.demo import view
from admin.demo.ledger import EDITED, WINDOW_S, Check, Ledger
from admin.demo.real.broker import RealBroker


class Limit(NamedTuple):
    """The limit of each name: messages per second, and how many seconds' worth of them may pass at once."""

    rate_per_s: float
    burst_s: float

    @property
    def burst(self) -> float:
        """How many messages may pass at once after a pause."""
        return self.rate_per_s * self.burst_s


def heading(
    address: Endpoint, broker: RealBroker, admin_url: str, limit: Limit, flooded: str, *, notes: Sequence[str]
) -> RenderableType:
    """Say what runs where."""
    if admin_url:
        way = [
            ("way", f"clients → sluice {address} → {broker.name} {broker.address}"),
            (
                "limit",
                f"{limit.rate_per_s:g} messages/s for each {broker.kind}, {limit.burst:g} at once after a pause",
            ),
        ]
    else:
        way = [("way", f"clients → {broker.name} {broker.address}; without Sluice")]
    rows = (
        *way,
        ("flood", f"{broker.kind} {flooded}"),
        *broker.about(),
        ("rates", f"shown as the mean of the last {WINDOW_S:g} s"),
    )
    title = f"sluice before a real {broker.name}" if admin_url else f"{broker.name} alone"
    return view.heading(title, admin_url, rows, notes)


def of_metrics(families: Iterable[Metric], kind: str, name: str) -> tuple[int, int, int]:
    """Return how many requests for a name Sluice let pass and refused, and how many it could not decide on at all."""
    passed = refused = bypassed = 0.0
    for family in families:
        for sample in family.samples:
            labels = sample.labels
            if sample.name == "sluice_requests_total" and (labels["kind"], labels["resource"]) == (kind, name):
                if labels["verdict"] == "refuse":
                    refused += sample.value
                else:
                    passed += sample.value
            elif sample.name == "sluice_bypassed_total":
                bypassed += sample.value
    return int(passed), int(refused), int(bypassed)


def version_of(families: Iterable[Metric]) -> float:
    """Return the version of the rules in force: another one when somebody has changed a limit."""
    return next((each.samples[0].value for each in families if each.name == "sluice_rule_set_version"), 0.0)


def checks(
    ledger: Ledger,
    stored: Mapping[str, int],
    limit: Limit | None,
    flooded_s: float,
    *,
    bypassed: int,
) -> list[Check]:
    """Hold what the clients saw against what the broker stored and what the limit allows.

    Args:
        ledger: what the clients and Sluice saw.
        stored: messages in the broker, by name.
        limit: the limit of each name; None without Sluice, when there is nothing to hold anybody to.
        flooded_s: how long the flood lasted.
        bypassed: requests that passed without a decision, since the machine was too slow for one.
    """
    kind = ledger.kind
    loads = [load for load in ledger.loads if not load.runaway]
    quiet = [ledger.counts[load.topic] for load in loads]
    unanswered = sum(each.unanswered for each in quiet)
    answered = Check(not unanswered, f"every request for a quiet {kind} got its answer: {unanswered:,} did not")
    sent = sum(each.sent for each in quiet)
    kept = sum(stored[load.topic] for load in loads)
    refused = sum(each.refused for each in quiet)
    if limit is None:
        lost = f"of {sent:,} messages for quiet {kind}s the broker refused {refused:,}"
        return [answered, Check(holds=True, text=f"without Sluice, {lost}")]
    if ledger.edited:
        return [EDITED, answered]
    failed = sum(each.failed for each in quiet)
    told = f"quiet {kind}s: {sent:,} sent, {refused:,} refused by Sluice, {kept:,} stored"
    if failed:
        told += f"; {failed:,} were refused by the broker, whose disk or processor was too slow"
    lost_nothing = Check(not refused and kept >= sent - failed - unanswered, told)
    (flooded,) = (load.topic for load in ledger.loads if load.runaway)
    # The bound of the limiter: the rate's integral and one burst; the last message may go into debt.
    most = int(limit.rate_per_s * flooded_s + limit.burst) + 1 + bypassed
    bound = f"{limit.rate_per_s:g}/s for {flooded_s:.1f} s, one burst of {limit.burst:g}, one more"
    if bypassed:
        bound += f", and {bypassed:,} that bypassed the limiter, which this machine was too slow for"
    return [
        lost_nothing,
        Check(
            stored[flooded] <= most and (ledger.counts[flooded].sent <= most or ledger.counts[flooded].refused > 0),
            f"{flooded} was held to its limit: {stored[flooded]:,} stored, {most:,} allowed ({bound})",
        ),
        answered,
    ]


def waits(found: Mapping[str, Sequence[float]], kind: str) -> RenderableType:
    """Show how long answers took, by name."""
    rows = []
    for topic, waits_s in found.items():
        if ordered := sorted(waits_s):
            half, most, all_ = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99, 1))
            rows.append((topic, *(f"{wait_s * 1000:,.1f} ms" for wait_s in (half, most, all_))))
    return Group(
        Text("\nhow long answers took", style="bold"),
        Rows((kind, "half within", "99% within", "slowest"), rows, right=(1, 2, 3)),
    )


def farewell(log: Path) -> RenderableType:
    """Say where the rejection log lies, and what may be done with it."""
    return Text(
        f"\nThe rejection log is in {log} until the next run. Who was refused, and what the limit should be:\n"
        f"    .venv/bin/sluice report {log}\n"
        "It needs Java, and once: .venv/bin/pip install -c constraints.txt '.[spark]'."
    )
