"""Generates the page of metrics from the families of a scrape."""

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
The admin address serves these metrics at `/metrics`, in Prometheus' text format or as OpenMetrics, depending on the
request. At most `bounds.max_resource_labels` resources have their own label. All others are counted under the resource
`_other`. A series with labels appears with its first value, and a series without labels is always present. Recording
rules and alerts are in [deploy/prometheus](../../deploy/prometheus), and a dashboard is in
[deploy/grafana](../../deploy/grafana)."""

_REASONS: Final = """\
The values of the label `reason` of `sluice_connections_closed_total`, which is also in the log line. Protocols in
separate packages may have others."""


def described() -> Iterator[Family]:
    """Yield every metric of a sidecar."""
    # The only attribute that is used.
    reloader: Any = SimpleNamespace(failed=None)
    # As above.
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
    return markdown.page("Metrics", "admin/stats/metrics.py and others", _INTRODUCTION, *parts)
