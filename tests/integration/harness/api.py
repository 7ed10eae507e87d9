"""A client of a sluice's HTTP API."""

import json
import urllib.error
import urllib.request
from typing import Any

from harness.sidecar import Sluice


def ask(sluice: Sluice, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Request a path below ``/api/v1``. Return status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{sluice.admin}/api/v1/{path}", data, {"content-type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def rate(sluice: Sluice, name: str = "orders") -> Any:
    """Return the active rate of a topic."""
    return ask(sluice, "GET", f"limits/topic/{name}")[1]["limit"]["rate"]
