"""The commands against the real API in this process."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin import wire
from admin.edits.model import ReloadReport
from proxy.stats.snapshot import ClientDescription, ConnectionState

Asked = Callable[..., Any]


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


async def test_limits_are_listed_with_their_effect(asked: Asked) -> None:
    lines = words((await asked("limits", "list", "--kind", "topic", "--sort", "name", "--limit", "2")).out)
    assert lines[0].startswith("kind resource limit")
    assert [line.split()[0] for line in lines[1:3]] == ["topic", "topic"]
    assert lines[-1].endswith("; --limit N or --all shows more")
    assert (await asked("limits", "list", "--search", "nobody")).out == "Nothing matches.\n"
    page = msgspec.json.decode((await asked("limits", "list", "--all", "--json")).out, type=wire.LimitPage)
    assert len(page.rows) == page.total


async def test_a_limit_is_set_shown_and_unset(asked: Asked) -> None:
    ran = await asked("limits", "set", "topic", "orders", "1000/s", "--burst-s", "2", "--reason", "launch")
    assert ran.exit_code == 0, ran.err
    assert words(ran.out) == [
        "topic orders: 500/s → 1000/s, burst_s 1 → 2",
        "change 1 by ada, lost on restart; `sluice audit revert 1` undoes it",
    ]
    shown = words((await asked("limits", "get", "topic", "orders")).out)
    assert shown[:2] == ["topic orders: 1000/s", "rule topic:orders (live edit 1)"]
    assert shown[2].startswith("further burst_s 2, ")
    assert shown[3].startswith("edited change 1 by ada, ")
    assert shown[3].endswith(": launch")
    assert shown[4] == "configured 500/s (sluice.toml:9)"
    differ = words((await asked("limits", "diff")).out)
    assert differ[1].startswith("topic orders 500/s 1000/s ada ")
    assert (await asked("limits", "unset", "topic", "orders")).exit_code == 0
    assert (await asked("limits", "diff")).out == "Nothing differs from the configuration.\n"
    again = await asked("limits", "unset", "topic", "orders")
    assert (again.exit_code, again.out) == (5, "")


async def test_a_difference_of_the_action_alone_is_shown(asked: Asked) -> None:
    assert (await asked("limits", "set", "topic", "orders", "--action", "shadow")).exit_code == 0
    differ = words((await asked("limits", "diff")).out)
    assert differ[1].startswith("topic orders 500/s, reject 500/s, shadow ada ")


async def test_a_dry_run_changes_nothing(asked: Asked) -> None:
    ran = await asked("limits", "set", "topic", "orders", "5", "--dry-run")
    assert ran.out == "would change: topic orders: 500/s → 5/s\n"
    assert (await asked("limits", "diff")).out == "Nothing differs from the configuration.\n"


async def test_late_edit_is_refused_with_the_active_limit(asked: Asked) -> None:
    ran = await asked("limits", "set", "topic", "orders", "5", "--if-match", "abc")
    etag = json.loads((await asked("limits", "get", "topic", "orders", "--json")).out)["etag"]
    assert (ran.exit_code, ran.out) == (3, "")
    assert ran.err.endswith(f" then use --if-match {etag}\n")
    assert (await asked("limits", "set", "topic", "orders", "5", "--if-match", etag)).exit_code == 0


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        (["topic", "orders", "--burst-s", "0"], "--burst-s: must be more than 0; found 0.0"),
        (["topic", "orders", "5", "--days", "someday"], "--days: "),
        (["topci", "orders", "5"], 'unknown kind "topci"; did you mean "topic"?'),
    ],
)
async def test_refusal_names_the_flag(asked: Asked, tokens: list[str], line: str) -> None:
    ran = await asked("limits", "set", *tokens)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith(f"sluice: {line}")


async def test_all_are_unset_at_once(asked: Asked) -> None:
    nothing = await asked("limits", "unset", "--all")
    assert (nothing.exit_code, nothing.err) == (5, "sluice: nothing to undo: no limit has an edit\n")
    for name in ("orders", "mail"):
        await asked("limits", "set", "topic", name, "7")
    ran = await asked("limits", "unset", "--all", "--reason", "over")
    assert words(ran.out)[-1] == "undid 2 edits: change 3 to 4 by ada"


async def test_buckets_start_full(asked: Asked) -> None:
    ran = await asked("limits", "reset", "topic", "orders", "--reason", "stuck")
    assert ran.exit_code == 0, ran.err
    assert (words(ran.out)[0], words(ran.out)[-1]) == ("topic orders: reset", "change 1 by ada")


async def test_a_reset_without_a_limit_is_an_error(asked: Asked) -> None:
    ran = await asked("limits", "reset", "subscription", "nothere@x")
    assert (ran.exit_code, ran.err) == (5, "sluice: subscription nothere@x has no limit to reset\n")


async def test_the_limits_of_a_file_are_put_in_force_and_written_out_again(asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('[[limits]]\nkind = "topic"\nname = "orders"\nrate = 7\n', encoding="utf-8")
    ran = await asked("limits", "apply", str(file))
    assert words(ran.out)[-1] == "changed 1, left 0 unchanged", ran.err
    assert words((await asked("limits", "apply", str(file))).out)[-1] == "changed 0, left 1 unchanged"
    exported = tomllib.loads((await asked("limits", "export", "--edits-only")).out)
    assert exported == {"limits": [{"kind": "topic", "name": "orders", "rate": 7, "action": "reject"}]}
    file.write_text('[[limits]]\nkind = "topic"\nname = "orders"\nrate = -1\n', encoding="utf-8")
    wrong = await asked("limits", "apply", str(file))
    assert (wrong.exit_code, wrong.err.startswith(f"sluice: {file}:4: limits[0].rate = -1: must be")) == (2, True)


async def test_limiting_is_switched_off_and_back(asked: Asked) -> None:
    assert (await asked("switch", "off", "--ttl", "10m")).out.startswith("switch all: on → off\n   until ")
    assert words((await asked("switch")).out)[1].startswith("all OFF on change 1 by ada, ")
    assert words((await asked("state")).out)[1] == "limiting OFF: everything passes"
    assert (await asked("switch", "reset")).exit_code == 0
    assert (await asked("switch", "reset")).exit_code == 5
    assert (await asked("switch", "on", "--kind", "topic")).exit_code == 0
    wrong = await asked("switch", "off", "--kind", "topci")
    assert (wrong.exit_code, wrong.err.startswith('sluice: unknown kind "topci"')) == (2, True)


async def test_changes_are_listed_and_undone(asked: Asked) -> None:
    assert (await asked("audit")).out == "Nothing has been changed.\n"
    await asked("limits", "set", "topic", "orders", "7", "--reason", "first")
    await asked("limits", "set", "topic", "orders", "8")
    late = await asked("audit", "revert", "1")
    assert (late.exit_code, late.err.startswith("sluice: ")) == (3, True)
    ran = await asked("audit", "revert", "2")
    assert "`sluice audit revert 3` undoes it" in ran.out
    lines = words((await asked("audit", "--target", "limits/", "--by", "ada")).out)
    assert "revert of 2 topic orders 8/s → 7/s" in lines[1]
    assert "topic orders 500/s → 7/s first" in lines[3]
    assert (await asked("audit", "revert", "99")).exit_code == 5


async def test_the_configuration_is_read_again(asked: Asked, served: Any) -> None:
    report = ReloadReport(
        change=None,
        changed=("topic:orders = 500/s",),
        needs_restart=("listeners",),
        hidden=("topic:mail = 5/s",),
        warnings=("doubtful",),
    )

    async def reload(_: Any, dry_run: bool) -> Any:  # noqa: FBT001 - as the service calls it
        return report

    served.edits.reloader = reload
    assert (await asked("reload", "--dry-run")).out.splitlines() == [
        "would change: topic:orders = 500/s",
        "needs a restart: listeners",
        "overridden by an edit: topic:mail = 5/s",
        "warning: doubtful",
    ]
    report = ReloadReport(change=None, changed=(), needs_restart=("fleet.name",), warnings=(), hidden=())
    assert (await asked("reload")).out.splitlines() == ["needs a restart: fleet.name", "nothing else changed"]


async def test_connections_are_listed_and_closed(asked: Asked, served: Any) -> None:
    served.data_path.connections_now = (
        ConnectionState(
            id=3,
            listener="main",
            peer="10.0.0.1:5",
            client=ClientDescription("orders@1", "JAVA", "5.3.0"),
            exempt=True,
            age_s=60,
            bytes_total={"client": 10, "broker": 5},
            requests_total=10,
            refused_total=2,
            in_flight=1,
            resources=("topic:orders",),
        ),
    )
    line = words((await asked("connections", "list", "--sort", "age", "--desc")).out)[1]
    assert line.startswith("3 10.0.0.1:5 orders@1 JAVA 5.3.0 [exempt] main topic:orders 10 2 1 ")
    assert (await asked("connections", "close", "3", "--reason", "floods")).out == "connection 3 closed\n"
    assert served.data_path.closed == [(3, "ada: floods")]
    served.data_path.connections_now = ()
    assert (await asked("connections", "close", "3")).exit_code == 5


async def test_the_state_is_reported(asked: Asked, served: Any) -> None:
    served.warnings.append("doubtful")
    lines = words((await asked("state")).out)
    assert [line.split()[0] for line in lines] == [
        *("Sluice", "limiting", "messages/s", "connections", "listener", "bypassed", "edits", "saved", "recorded"),
        "warning",
    ]
    assert lines[-2:] == ["recorded in nothing: the rejection log is off", "warning doubtful"]
