"""The page of every metric, from the families that a scrape is made of."""

from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from prometheus_client.core import Metric

from admin.http import server
from admin.http.problems import Refusals
from admin.rejection_log.files import Figures
from admin.rejection_log.recorder import families as log_families
from admin.run import reload
from admin.stats.metrics import families, families_of
from proxy.stats.closing import CLOSING_REASONS
from proxy.stats.snapshot import Snapshot
from reference import markdown
from reference.markdown import code, table

_INTRODUCTION: Final = """\
The admin address serves these metrics at `/metrics`, in Prometheus' text format or as OpenMetrics, as the request asks.
At most `bounds.max_resource_labels` resources have their own label; the others are counted under the resource `_other`.
A series with labels appears with its first value; a series without labels is always there. Rules and alerts are in
[deploy/prometheus](../../deploy/prometheus), a dashboard is in [deploy/grafana](../../deploy/grafana)."""

_REASONS: Final = """\
The label `reason` of `sluice_connections_closed_total`, which is also in the log line and in the API's event. Protocols
that are packages of their own may have others."""


class Described(NamedTuple):
    """One metric.

    Attributes:
        name: of its samples.
        type: as Prometheus has it.
        labels: in alphabetical order.
        help: what it is.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def described() -> Iterator[Described]:
    """Yield every metric that a sidecar can show."""
    # Of a reloader only this is read.
    reloader: Any = SimpleNamespace(failed=None)
    # And of a plan.
    plan: Any = SimpleNamespace(expiries=list)
    for family in chain(
        families(Snapshot()),
        log_families(None),
        families_of(Figures()),
        reload.families(reloader),
        reload.certificate_families(plan),
        [server.refused_family(Refusals())],
    ):
        yield _described(family.metric)


def _described(metric: Metric) -> Described:
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    name = metric.name.removesuffix(suffix) + suffix
    if metric.type == "info":
        labels = tuple(sorted(label for sample in metric.samples for label in sample.labels))
    else:
        # Prometheus' own families keep them for the samples to come.
        labels = tuple(getattr(metric, "_labelnames", ()))
    return Described(name, metric.type, labels, metric.documentation)


def page() -> str:
    """Return the page."""
    rows = [(code(each.name), each.type, ", ".join(map(code, each.labels)), each.help) for each in described()]
    parts = [
        f"## {title}\n\n{table(('metric', 'type', 'labels', 'meaning'), some)}"
        for title, some in (
            ("Of Sluice", [row for row in rows if row[0].startswith("`sluice_")]),
            ("Of its process", [row for row in rows if not row[0].startswith("`sluice_")]),
        )
    ]
    reasons = table(("reason", "meaning"), [(code(reason), meaning) for reason, meaning in CLOSING_REASONS.items()])
    parts.append(f"## Why connections end\n\n{_REASONS}\n\n{reasons}")
    return markdown.page("Metrics", "admin/stats/metrics.py and its kin", _INTRODUCTION, *parts)
