import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_examples import CONNECTIONS, FLEET, STATE

from admin.cli import main
from admin.client.text import moment
from admin.wire import FleetAnswer, sentences

Make = Callable[..., dict[str, Any]]
Sluice = Callable[..., Any]


KEYS = ("changed", "needs_restart", "hidden", "warnings")


class TestReload:
    def test_of_an_invalid_file_lists_each_fault(self, api: Any, sluice: Sluice, problem: Any) -> None:
        faults = [{"field": "", "detail": "sluice.toml:3: rate = -1: must be"}]
        api.answers["POST /reload"] = problem(409, "the configuration is wrong; nothing was changed", *faults)
        ran = sluice("reload")
        assert ran.exit_code == 2
        assert ran.err.splitlines() == [
            "sluice: the configuration is wrong; nothing was changed",
            "sluice: sluice.toml:3: rate = -1: must be",
        ]


def test_the_fleet_is_shown_with_members_shares_and_demand(api: Any, sluice: Sluice) -> None:
    now = msgspec.structs.replace(FLEET, disagreements=("members disagree about a limit",))
    api.answers["GET /fleet"] = (200, msgspec.to_builtins(FleetAnswer(sentences.of_fleet(now))))
    lines = [" ".join(line.split()) for line in sluice("fleet").out.splitlines()]
    assert lines[:3] == [
        "orders-prod: 4 members; last response from Redis 0.1 s ago",
        "Redis redis://127.0.0.1:6379, this member host-a-4211, when_away last",
        "warning: members disagree about a limit",
    ]
    for line in (
        "host-a-4211 0.1 s yes",
        "limit of rate/s share share/s asks/s permits",
        "topic orders messages 500 62.4% 312 340 93",
    ):
        assert line in lines
    api.answers["GET /fleet"] = (200, {"fleet": None})
    assert sluice("fleet").out == "This sidecar is not in a fleet: its configuration has no [fleet].\n"


class TestAudit:
    def test_pages_until_it_has_enough(self, api: Any, sluice: Sluice, change: Make) -> None:
        def answer(request: Any) -> Any:
            first, most = int(request.query.get("before", 2001)) - 1, int(request.query["limit"])
            return 200, {"changes": [change(id=first - at) for at in range(most)], "next": first - most + 1}

        api.answers["GET /audit"] = answer
        body = json.loads(sluice("audit", "--limit", "700", "--json").out)
        assert [each["id"] for each in body["changes"]] == list(range(2000, 1300, -1))


CONNECTION = {
    "id": 3,
    "listener": "main",
    "peer": "10.0.0.1:5",
    "client": {"id": "orders@1", "language": "JAVA", "version": "5.3.0"},
    "exempt": False,
    "requests_total": 10,
    "refused_total": 2,
    "in_flight": 1,
    "resources": ["topic:orders"],
    "more_resources": 2,
    "age_s": 61.0,
}


class TestConnections:
    def test_their_links_are_listed(self, api: Any, sluice: Sluice) -> None:
        links = [
            {"name": "out", "session": 0, "sends": True, "resource": "queue:orders", "credit": 20}
            | {"withheld": 150, "used": 48_210, "refused": 3, "waits_ms": 1250, "address": "/queues/orders"},
            {"name": "in", "session": 0, "sends": False, "resource": "", "credit": 5}
            | {"withheld": 0, "used": 7, "refused": 0, "waits_ms": 0},
            {"name": "any", "session": 0, "sends": True, "resource": "", "credit": 5}
            | {"withheld": 0, "used": 7, "refused": 0, "waits_ms": 0},
        ]
        rows = [CONNECTION, {**CONNECTION, "id": 4, "links": links, "more_links": 2}]
        api.answers["GET /connections"] = (200, {"rows": rows, "total": 2})
        assert [
            " ".join(line.split()) for line in sluice("connections", "links", "--search", "out").out.splitlines()
        ] == [
            "id peer link address client sends resource credit withheld used refused waits",
            "4 10.0.0.1:5 out /queues/orders yes queue:orders 20 150 48210 3 1.2 s",
            "4 10.0.0.1:5 in 5 0 7 0",
            "4 10.0.0.1:5 any yes 5 0 7 0",
            "4 10.0.0.1:5 and 2 more",
        ]
        assert api.asked[0].query["search"] == "out"
        assert " 5, 1 waiting   1 min 1 s" in sluice("connections").out


def test_the_state_has_an_operators_figures(api: Any, sluice: Sluice) -> None:
    listener = {"name": "main", "listen": "127.0.0.2:1", "broker": "127.0.0.1:1", "connections": 4, "reachable": False}
    now = {
        "version": "0.1.0",
        "compiled_extension": "none",
        "instance": "",
        "uptime_s": 90,
        "off": ["topic"],
        "draining": False,
        "listeners": [msgspec.to_builtins(STATE.listeners[0]) | listener | {"error": "refused"}],
        "bypassed": {
            "total": 5,
            "per_s_last_60s": 0.0,
            "by": [{"handler": "rate_limit", "reason": "late", "total": 5}],
        },
        "persistence": {"directory": None, "error": "disk full", "set_aside": ["state.db.damaged-1"]},
        "edits": {"standing": 2, "expiring_next": {"target": "limits/topic/a", "expires_at": "2026-11-21T20:00:00Z"}},
        "failed_reload": {
            "at": "2026-11-21T19:00:00Z",
            "by": "SIGHUP",
            "problems": ["sluice.toml:3: limits[0].rate: must be a number"],
        },
        "rejection_log": {"directory": "/var/lib/sluice/rejections", "error": "disk full"},
        "warnings": ["doubtful"],
        "adaptive": [{"listener": "main", "limit_per_s": 5.0, "text": "adaptive: 5/s now; the broker's p90 is 2 s"}],
        "fleet": {"name": "orders-prod", "text": "4 members; last response from Redis 0.1 s ago"},
    }
    api.answers["GET /state"] = (200, msgspec.to_builtins(STATE) | now)
    lines = sluice("state").out.splitlines()
    assert lines[0] == f"Sluice 0.1.0 (compiled extension: none) at {api.url}, up for 1 min 30 s"
    assert lines[1] == "limiting     on, OFF for topic"
    for line in (
        "listener     main: 127.0.0.2:1 -> 127.0.0.1:1 (NOT REACHABLE: refused), 4 open",
        "bypassed     5 requests since start (rate_limit late 5)",
        "saved in     memory: edits are lost on restart; disk full",
        "adaptive     main: 5/s now; the broker's p90 is 2 s",
        "fleet        orders-prod: 4 members; last response from Redis 0.1 s ago",
        "quarantined  state.db.damaged-1",
        "recorded in  /var/lib/sluice/rejections; disk full",
        f"reload       FAILED by SIGHUP, {moment('2026-11-21T19:00:00Z')}: the previous configuration still applies",
        "             sluice.toml:3: limits[0].rate: must be a number",
        "warning      doubtful",
    ):
        assert line in lines
    assert any(line.startswith("edits        2 active; limits/topic/a expires ") for line in lines)


def test_a_state_without_a_field_is_that_of_another_version(api: Any, sluice: Sluice) -> None:
    api.answers["GET /state"] = (200, {"version": "0", "compiled_extension": "none"})
    ran = sluice("state")
    assert (ran.exit_code, ran.out) == (1, "")
    assert (
        f"{api.url}: unexpected response ('rates' is missing); check that --admin points to a Sluice of this version"
        in ran.err
    )


def test_state_and_connections_say_which_of_several_brokers_is_used(api: Any, sluice: Any) -> None:
    listener = msgspec.to_builtins(STATE.listeners[0]) | {"name": "ha", "listen": "127.0.0.2:1"}
    listener |= {"broker": "127.0.0.1:3", "connections": 1, "reachable": True}
    backup = {"backup": 2, "backups": 2, "passed_over": ["127.0.0.1:1: Connection refused", "127.0.0.1:2: no answer"]}
    api.answers["GET /state"] = (200, {**msgspec.to_builtins(STATE), "listeners": [listener | backup]})
    how = "backup 2 of 2; 127.0.0.1:1: Connection refused; 127.0.0.1:2: no answer"
    assert f"listener     ha: 127.0.0.2:1 -> 127.0.0.1:3 ({how}), 1 open" in sluice("state").out.splitlines()
    rows = msgspec.to_builtins(CONNECTIONS)
    api.answers["GET /connections"] = (200, rows)
    assert "broker" not in sluice("connections").out.splitlines()[0]
    rows["rows"][0]["broker"] = "127.0.0.1:3"
    head, first = sluice("connections").out.splitlines()[:2]
    assert first[head.index("broker") :].startswith("127.0.0.1:3")


def test_tail_reads_the_log_of_the_sidecar_that_is_asked(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = tmp_path / "own" / "rejections", tmp_path / "usual" / "other" / "rejections"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "rejections-a-000000000000-000001.jsonl").touch()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "usual"))
    monkeypatch.setenv("SLUICE_URL", api.url)

    def tail_of(directory: Path | None) -> tuple[int, str]:
        log = {"directory": directory and str(directory)}
        api.answers["GET /state"] = (200, {"version": "1", "rejection_log": log})
        code = main(["report", "tail"])
        return code, capsys.readouterr().err.splitlines()[0]

    code, said = tail_of(own)
    assert code == 0
    assert said == f"sluice: reading {own}"
    code, said = tail_of(tmp_path / "elsewhere")
    assert code == 2
    assert said.endswith(
        f"to {tmp_path / 'elsewhere'}, which does not exist on this machine; run the command on Sluice's machine"
    )
    code, said = tail_of(None)
    assert code == 2
    assert "does not write a rejection log; pass the path of a log" in said
