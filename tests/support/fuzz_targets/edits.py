"""Requests of the HTTP API that read and change limits: each is answered, and every error is the client's."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, Final
from urllib.parse import unquote

import trio
from structlog.testing import capture_logs

from admin.config.sources import Flags, load
from admin.edits.model import Author
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.http.api import Services, application
from admin.run.composition import compose
from admin.stats import LiveStats
from admin.stats.health import Health
from fuzz_targets import Changed
from proxy.common.clock import Clock

STEPS: Final = (4_000_000, 40_000)

_MAX_REQUESTS: Final = 6
_NOW: Final = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
_LIMITS: Final = (
    "topic:orders=500/s",
    "topic:audit-*=20/s",
    "topic:*=1000/s",
)
_BODIES: Final[Sequence[Mapping[str, Any]]] = (
    {"rate": 5},
    {"rate": 1e308, "reason": "why", "ttl_s": 60},
    {"rate": "unlimited", "bytes_per_s": 1000000},
    {"action": "delay", "rate": 3, "max_delay_s": 2.5},
    {"action": "off"},
    {"rate": 5, "between": "22:00-06:00", "days": ["mon"], "time_zone": "Europe/Berlin"},
    {"rate": 5, "fair_by": "client", "shared": True, "warm_up_s": 3, "busy_code": 2, "burst_s": 2, "break_s": 1},
    {"limiting": False},
    {"force": True},
    {},
    {
        "reason": "all",
        "edits": [
            {"type": "set_limit", "kind": "topic", "name": "a", "limit": {"rate": 5}, "if_none_match": True},
            {"type": "unset_limit", "kind": "topic", "name": "orders", "if_match": "*"},
            {"type": "set_switch", "kind": "all", "limiting": False, "ttl_s": 5},
            {"type": "unset_switch", "kind": "topic"},
        ],
    },
)
_HEADS: Final = (
    "PUT /limits/topic/orders",
    "PATCH /limits/topic/orders?dry_run=true",
    "PATCH /limits/topic/audit-*",
    "DELETE /limits/topic/orders?volatile=true&reason=x",
    "GET /limits/topic/orders",
    "GET /limits/topic/%2E%2E?",
    "PUT /limits/total/topic%3Aorders",
    "PUT /limits/topic/*",
    "POST /limits:batch",
    "POST /limits",
    "PUT /switches/all",
    "DELETE /switches/topic",
    "GET /audit?before=3&target=limits%2Ftopic",
    "POST /audit/1/revert",
    "GET /rules?kind=topic",
    "GET /diff",
    "GET /defaults",
    "GET /switches",
)
# Paths that do not use the data path.
_OF_EDITS: Final = (b"/limits", b"/defaults", b"/switches", b"/audit", b"/rules", b"/diff")
_HEADERS: Final = ('if-match: "x"', "if-match: *", "if-none-match: *", 'if-none-match: W/"a", "b"')


class _NoDataPath:
    async def apply(self, rule_set: object) -> None:
        del rule_set


def mutated(data: bytes, max_bytes: int, changed: Changed, random: Random) -> bytes:
    """Change lines, values of a body, or bytes."""
    if random.random() < 0.4:
        return changed(data, max_bytes)
    asks = data.split(b"\0")
    at = random.randrange(len(asks))
    head, _, body = asks[at].partition(b"\n\n")
    match random.randrange(7):
        case 0:
            asks.insert(at, _ask(random.choice(_HEADS), random.choice(_BODIES)))
        case 1:
            asks.insert(at, asks[random.randrange(len(asks))])
        case 2:
            asks[at] = random.choice(_HEADS).encode() + b"\n\n" + body
        case 3:
            asks[at] = head + b"\n" + random.choice(_HEADERS).encode() + b"\n\n" + body
        case 4:
            asks[at] = head + b"\n\n" + changed(body, len(body) + 32)
        case 5:
            asks[at] = changed(head, len(head) + 32) + b"\n\n" + body
        case _:
            asks[at] = head + b"\n\n" + _other_value(body, random)
    return b"\0".join(asks)[:max_bytes]


def _other_value(body: bytes, random: Random) -> bytes:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(found, dict):
        other = random.choice(_BODIES)
        key = random.choice([*found, *other, "limit"])
        values = (None, True, 0, -1, -0.0, 1e400, 2**70, "", "x" * 300, "\ud800", [], {}, *other.values())
        found[key] = random.choice(values)
    return json.dumps(found).encode()


def _ask(head: str, body: object = None) -> bytes:
    return head.encode() + b"\n\n" + (b"" if body is None else json.dumps(body).encode())


def seeds() -> Iterable[bytes]:
    """Return each request alone, and some in a row."""
    for head in _HEADS:
        yield _ask(head)
        for header in _HEADERS:
            yield _ask(f"{head}\n{header}", {"rate": 5})
        for body in _BODIES:
            if not head.startswith("GET"):
                yield _ask(head, body)
    yield b"\0".join((_ask(_HEADS[0], _BODIES[0]), _ask(_HEADS[13], {}), _ask(_HEADS[12])))
    yield b"\0".join((_ask(_HEADS[2], _BODIES[2]), _ask(_HEADS[3]), _ask(_HEADS[15])))
    yield b"\0".join((_ask(_HEADS[8], _BODIES[10]), _ask(_HEADS[14]), _ask(_HEADS[13], {"force": True})))


def run(data: bytes) -> None:
    asks = list(_asks(data))
    if asks:
        # Each change has a line of the log.
        with capture_logs():
            trio.run(_answer_all, asks)


def _asks(data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    for ask in data.split(b"\0")[:_MAX_REQUESTS]:
        head, _, body = ask.partition(b"\n\n")
        first, *headers = head.split(b"\n")
        method, _, target = first.partition(b" ")
        path, _, query = target.partition(b"?")
        # A server refuses invalid methods, and non-ASCII paths.
        if not method.isalpha() or not path.startswith(b"/") or not path.isascii():
            continue
        if not path.startswith(_OF_EDITS) or path.endswith(b":reset") or (method, path) == (b"GET", b"/limits"):
            continue
        pairs = [header.partition(b":") for header in headers]
        yield (
            {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "scheme": "http",
                "server": ("localhost", 80),
                "client": ("127.0.0.1", 50222),
                "root_path": "",
                "method": method.decode().upper(),
                "path": unquote(path.decode()),
                "raw_path": path,
                "query_string": query,
                "headers": [(name.strip().lower(), value.strip()) for name, _, value in pairs],
                "state": {"author": Author("alice", "127.0.0.1:50222"), "role": "write", "authentication": True},
            },
            body,
        )


async def _answer_all(asks: list[tuple[dict[str, Any], bytes]]) -> None:
    """Use a separate API."""
    data_path: Any = _NoDataPath()
    edits = EditService(_PLAN.rulebook, Store(None), clock=lambda: _NOW)
    board = LiveStats(data_path, edits, Health(data_path), Clock(utc=lambda: _NOW))
    app = application(Services(data_path, edits, board, list))
    async with trio.open_nursery() as nursery:
        await nursery.start(edits.run, data_path)
        for scope, body in asks:
            await _answer(app, scope, body)
        nursery.cancel_scope.cancel()


async def _answer(app: Any, scope: dict[str, Any], body: bytes) -> None:
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    await app(scope, receive, send)
    status = said[0]["status"]
    assert status < 500 or status == 507, (status, said[1:])
    content = b"".join(message.get("body", b"") for message in said[1:])
    # For missing paths and methods, the guard around the API answers in JSON.
    if content and content not in {b"Not Found", b"Method Not Allowed"}:
        found = json.loads(content)
        if status >= 400:
            assert found["status"] == status
            assert found["title"]


_PLAN: Final = compose(load(None, {}, Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:10911"], limits=list(_LIMITS))))
