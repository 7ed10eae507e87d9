"""The page of every metric, from the families of a scrape."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from admin.http import server
from admin.http.problems import Refusals
from admin.rejection_log.files import Figures
from admin.rejection_log.recorder import families as log_families
from admin.run import reload
from admin.stats.metrics import Family, families, families_of
from proxy.stats.snapshot import Snapshot
from reference import markdown
from reference.closing import CLOSING_REASONS
from reference.markdown import code, table

_INTRODUCTION: Final = """\
The admin address serves these metrics at `/metrics`, in Prometheus' text format or as OpenMetrics, as the request asks.
At most `bounds.max_resource_labels` resources have their own label; the others are counted under the resource `_other`.
A series with labels appears with its first value; a series without labels is always there. Rules and alerts are in
[deploy/prometheus](../../deploy/prometheus), a dashboard is in [deploy/grafana](../../deploy/grafana)."""

_REASONS: Final = """\
The label `reason` of `sluice_connections_closed_total`, which is also in the log line. Protocols that are packages
of their own may have others."""


def described() -> Iterator[Family]:
    """Yield every metric of a sidecar."""
    # Only this is read of a reloader.
    reloader: Any = SimpleNamespace(failed=None)
    # And of a plan.
    plan: Any = SimpleNamespace(expiries=list)
    yield from families(Snapshot())
    yield from log_families(None)
    yield from families_of(Figures())
    yield from reload.families(reloader)
    yield from reload.certificate_families(plan)
    yield server.refused_family(Refusals())


def page() -> str:
    rows = [(code(each.name), each.type, ", ".join(map(code, each.labels)), each.help) for each in described()]
    parts = [
        f"## {title}\n\n{table(('metric', 'type', 'labels', 'meaning'), some)}"
        for title, some in (
            ("Sluice", [row for row in rows if row[0].startswith("`sluice_")]),
            ("Process", [row for row in rows if not row[0].startswith("`sluice_")]),
        )
    ]
    reasons = table(("reason", "meaning"), [(code(reason), meaning) for reason, meaning in CLOSING_REASONS.items()])
    parts.append(f"## Why connections end\n\n{_REASONS}\n\n{reasons}")
    return markdown.page("Metrics", "admin/stats/metrics.py and its kin", _INTRODUCTION, *parts)
