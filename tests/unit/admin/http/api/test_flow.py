"""Waiting and spooled messages."""

from typing import Any

import msgspec
from api_examples import ADAPTIVE, FLEET, SPOOL

from admin.wire import PROBLEM, AdaptiveLimits, FleetAnswer, Spool
from proxy.flow.credit import StageState
from proxy.flow.diagnosis import FlowFinding
from proxy.stats.flow import ConnectionFlow, Flow, StageCount
from proxy.stats.snapshot import AlarmState

WAITING = tuple(
    ConnectionFlow(number, "main", StageState("connection", str(number), "flow", waits_for=("resource topic a",)))
    for number in range(1, 4)
)
NOW = Flow(
    findings=(FlowFinding("limit", 3, ("resource topic a",), "3 connections wait for a limit."),),
    counts=(StageCount("connection", "flow", 3), StageCount("connection", "running", 9)),
    connections=WAITING,
    store=StageState("store", "spool"),
    alarms=(
        AlarmState("memory", stands=True, since="2026-01-02T03:04:05.678Z", total=2, stood_s=1.5, text="too much"),
    ),
    busy_ratio=0.5,
)


async def test_flow_reads_back_in_words(served: Any) -> None:
    served.data_path.flow_now = NOW
    flow = msgspec.json.decode((await served.get("flow?limit=2")).content, type=Flow)
    assert (flow.connections, flow.more_connections) == (WAITING[:2], 1)
    assert flow.sentences == ("3 connections wait for a limit.",)
    (alarm,) = flow.alarms
    assert (alarm.since, alarm.status) == (NOW.alarms[0].since, "RAISED: too much")


async def test_adaptive_limits_read_back_in_words(served: Any) -> None:
    assert (await served.get("adaptive")).json() == {"limits": []}
    served.data_path.adaptive_states = (ADAPTIVE,)
    (limit,) = msgspec.json.decode((await served.get("adaptive")).content, type=AdaptiveLimits).limits
    assert (limit.names, limit.history) == (ADAPTIVE.names, ADAPTIVE.history)
    assert limit.text == "adaptive: 1840/s now; the broker's p90 is 85 ms, usually 12 ms"


async def test_the_fleet_reads_back_in_words_and_the_state_has_it_in_short(served: Any) -> None:
    assert (await served.get("fleet")).json() == {"fleet": None}
    served.data_path.fleet_now = FLEET
    fleet = msgspec.json.decode((await served.get("fleet")).content, type=FleetAnswer).fleet
    assert fleet is not None
    assert (fleet.members, fleet.text) == (FLEET.members, "4 members; last response from Redis 0.1 s ago")
    assert [each.text for each in fleet.limits] == [
        "500/s for 4 members; this member's share is 312/s",
        "1048576 bytes/s for 4 members; this member's share is 262144 bytes/s",
    ]
    assert (await served.get("state")).json()["fleet"] is None
    now = msgspec.structs.replace(FLEET, disagreements=("members disagree",))
    served.data_path.snapshot_now = msgspec.structs.replace(served.data_path.snapshot_now, fleet=now)
    await served.stats.sample()
    state = (await served.get("state")).json()
    short = state["fleet"]
    assert "members disagree" in state["warnings"]
    assert (short["text"], short["members"], short["limits"]) == (fleet.text, [], [])


async def test_the_spool_reads_back(served: Any) -> None:
    served.data_path.spool_now = SPOOL.holds
    spool = msgspec.json.decode((await served.get("spool")).content, type=Spool)
    assert spool.holds == SPOOL.holds
    none = msgspec.json.decode((await served.get("spool?limit=0")).content, type=Spool)
    assert none.holds is not None
    assert none.holds.resources == ()


async def test_without_a_spool_there_is_none_to_show_or_to_purge(served: Any) -> None:
    served.data_path.spool_now = None
    assert (await served.get("spool")).json()["holds"] is None
    answer = await served.ask("DELETE", "spool/topic/orders")
    assert (answer.status_code, answer.headers["content-type"]) == (409, PROBLEM)
    assert answer.json()["detail"] == "there is no spool"
    assert (await served.get("audit")).json()["changes"] == []


async def test_a_purge_reports_its_result_and_is_in_the_audit_trail(served: Any) -> None:
    answer = await served.ask("DELETE", "spool/topic/a%2Fb?reason=too%20old")
    assert answer.json() == {"kind": "topic", "name": "a/b", "refused": 3, "dropped": 1, "change": 1}
    assert served.data_path.purges == [("topic", "a/b")]
    (change,) = (await served.get("audit?target=spool/")).json()["changes"]
    assert (change["action"], change["target"], change["by"], change["reason"]) == (
        "purge",
        "spool/topic/a/b",
        "alice",
        "too old",
    )
    assert change["details"] == ["3 messages refused", "1 message dropped"]
    assert (await served.ask("POST", "audit/1/revert")).status_code == 404


async def test_only_one_resource_is_purged_at_a_time(served: Any) -> None:
    for path in ("spool/topic/audit-*", "spool/topci/orders", "spool/topic/"):
        answer = await served.ask("DELETE", path)
        assert answer.status_code in {400, 404}, path
        assert answer.headers["content-type"] == PROBLEM
    assert served.data_path.purges == []
