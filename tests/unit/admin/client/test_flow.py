import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from api_examples import FLOW, SPOOL

from admin.wire import Spool, sentences

Sluice = Callable[..., Any]


def body(answer: msgspec.Struct) -> Any:
    return json.loads(msgspec.json.encode(answer))


class TestFlow:
    def test_shows_the_bottleneck_first(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /flow"] = (200, body(FLOW))
        lines = [" ".join(line.split()) for line in sluice("flow", "--limit", "5").out.splitlines()]
        assert api.asked[0].query == {"limit": "5"}
        assert lines[0] == FLOW.findings[0].text
        assert lines[2] == "memory alarm none: 128 MiB used, alarm above 1.00 GiB"
        assert lines[3].startswith("disk alarm RAISED: ")
        assert "publishers are blocked until 1.10 GiB is free (since 2026-01-02" in lines[3]
        assert lines[4:7] == ["spool disk running", "connections 1 in flow, 11 running", "busy 25% of the last second"]
        assert lines[8:] == [
            "id listener stage state how often, how long waits for",
            "41 main connection 41 in flow in flow 3 times, 2.5 s resource topic orders",
            "resource topic orders in flow in flow 3 times, 2.5 s store spool",
            "",
            "destination confirmed by waiting oldest window by consumers by the broker published again refused",
            "exchange events broker: its consumers do not keep up 12 1.5 s 16 902114 40310 7 0",
            "queue orders consumers 310 18 ms 2048 4811020 65 3 0",
        ]


class TestSpool:
    @pytest.mark.parametrize("command", [["spool"], ["spool", "list"]])
    def test_is_shown_by_place_and_by_resource(self, api: Any, sluice: Sluice, command: list[str]) -> None:
        api.answers["GET /spool"] = (200, body(SPOOL))
        lines = [" ".join(line.split()) for line in sluice(*command).out.splitlines()]
        assert lines[0] == "50000 messages of 7.15 MiB in 1 queue, in /var/lib/sluice/127.0.0.2-10911/spool"
        assert lines[2:6] == [
            "places alpha 800, beta 200, delta 49000",
            "memory 469 KiB of 32.0 MiB",
            "disk 8.00 MiB of 16.0 GiB",
            "so far 60000 in, 10000 out, 49200 written, 0 read",
        ]
        assert lines[7:] == [
            "resource messages content in memory alpha beta delta in/s out/s queues",
            "topic orders 50000 7.15 MiB 469 KiB 800 200 49000 5000 500 1",
        ]

    def test_that_is_missing_is_reported(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /spool"] = (200, body(sentences.spool(Spool())))
        assert sluice("spool").out == "There is no spool; waiting messages are held in memory.\n"


class TestPurge:
    def test_is_asked_for_by_kind_and_name(self, api: Any, sluice: Sluice) -> None:
        found = {"kind": "queue", "name": "t/a b", "refused": 3, "dropped": 1, "change": 7}
        api.answers["DELETE /spool/queue/t%2Fa%20b"] = (200, found)
        ran = sluice("spool", "purge", "queue:t/a b", "--yes", "--reason", "too old")
        assert ran.out == "queue:t/a b: 3 refused, 1 dropped; change 7\n"
        assert api.asked[0].query == {"reason": "too old"}

    def test_of_nothing_is_explained(self, api: Any, sluice: Sluice) -> None:
        api.answers["DELETE /spool/topic/a"] = (
            200,
            {"kind": "topic", "name": "a", "refused": 0, "dropped": 0, "change": 7},
        )
        assert sluice("spool", "purge", "topic:a", "--yes").out == "No messages of topic:a were spooled; change 7\n"

    def test_requires_yes_without_a_terminal(self, api: Any, sluice: Sluice) -> None:
        ran = sluice("spool", "purge", "topic:a")
        assert (ran.exit_code, api.asked) == (2, [])
        assert ran.err == "sluice: purging topic:a cannot be undone; confirm it with --yes\n"

    @pytest.mark.parametrize(("said", "asked"), [("y\n", 1), ("n\n", 0), ("\n", 0)])
    def test_asks_on_a_terminal(
        self, api: Any, sluice: Sluice, monkeypatch: pytest.MonkeyPatch, said: str, asked: int
    ) -> None:
        class Terminal:
            def isatty(self) -> bool:
                return True

            def readline(self) -> str:
                return said

        monkeypatch.setattr("sys.stdin", Terminal())
        api.answers["DELETE /spool/topic/a"] = (
            200,
            {"kind": "topic", "name": "a", "refused": 1, "dropped": 0, "change": 7},
        )
        ran = sluice("spool", "purge", "topic:a")
        assert len(api.asked) == asked
        assert "This cannot be undone. [y/N]" in ran.err
        assert (ran.exit_code == 0) is bool(asked)

    @pytest.mark.parametrize("resource", ["orders", "topic:", ":orders"])
    def test_of_an_invalid_resource_is_refused(self, api: Any, sluice: Sluice, resource: str) -> None:
        ran = sluice("spool", "purge", resource, "--yes")
        assert (ran.exit_code, api.asked) == (2, [])
        assert "must be KIND:NAME" in ran.err
