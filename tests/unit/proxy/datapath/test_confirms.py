"""The data path's figures of messages confirmed by consumers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from limiter.rules.rule import Rule
from proxy.datapath.pressure import by_destination, labelled_confirms
from proxy.net.server import ListenerConfig
from proxy.protocols.base import Kind, Protocol
from proxy.stats.question import Question
from proxy.stats.snapshot import ConfirmState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

StartRig = Any
HOST = "127.0.0.1"
KEPT_UP = ConfirmState("queue", "a", "after_consume", "", 5, 20, 32, 100, 3, 2, 1)
BEHIND = ConfirmState("queue", "a", "broker", "behind", 16, 1500, 16, 7, 4, 0, 0)
OTHERS = tuple(msgspec.structs.replace(BEHIND, name=f"q{number}") for number in range(3))


def test_destinations_of_one_name_are_one() -> None:
    both = ConfirmState("queue", "a", "broker", "behind", 21, 1500, 48, 107, 7, 2, 1)
    for states in ((KEPT_UP, BEHIND, *OTHERS), (BEHIND, KEPT_UP, *OTHERS)):
        assert by_destination(states) == [both, *OTHERS]


def test_resources_beyond_the_label_cap_are_one_per_kind() -> None:
    exchange = msgspec.structs.replace(BEHIND, kind="exchange", name="events")
    found = labelled_confirms((*OTHERS, KEPT_UP, exchange), 2)
    assert [(each.kind, each.name, each.pending) for each in found] == [
        ("queue", "q0", 16),
        ("queue", "q1", 16),
        ("queue", "_other", 21),
        ("exchange", "_other", 16),
    ]


class TestDataPath:
    async def test_asks_the_sessions_of_each_broker_once(
        self, start_rig: StartRig, lines: Protocol, now_ns: Callable[[], int], broker: Any
    ) -> None:
        asked: list[tuple[object, int]] = []
        hubs: list[object] = []

        def open_hub() -> object:
            hubs.append(object())
            return hubs[-1]

        def states(hub: object, at_ns: int) -> Sequence[ConfirmState]:
            asked.append((hub, at_ns))
            return (KEPT_UP,) if hub is hubs[0] else (BEHIND, *OTHERS)

        kinds = (Kind("queue", "", after_consume=True, queues=1), *lines.kinds)
        protocol = replace(lines, kinds=kinds, open_hub=open_hub, confirm_states=states)
        elsewhere = (HOST, broker.address[1] + 1)
        listeners = tuple(
            ListenerConfig(name, protocol, protocol.options(), (HOST, 0), to)
            for name, to in (("main", broker.address), ("second", broker.address), ("other", elsewhere))
        )
        rules = [Rule("queue", "a", None, confirm="after_consume")]
        rig = await start_rig(listeners=listeners, rules=rules, max_resource_labels=3)
        await trio.testing.wait_all_tasks_blocked()

        confirms = await rig.path.confirms()
        assert [(each.name, each.pending) for each in confirms] == [("a", 21), ("q0", 16), ("q1", 16), ("q2", 16)]
        # Queues that the broker confirms come first, then the most pending messages.
        flow = await rig.path.flow(3)
        assert ([each.name for each in flow.confirms], flow.more_confirms) == (["a", "q0", "q1"], 1)
        assert asked[:2] == [(hub, now_ns()) for hub in hubs]
        assert [each.name for each in (await rig.path.snapshot()).confirms] == ["a", "q0", "q1", "_other"]
        assert (await rig.path.snapshot(whole=False)).confirms == ()
        explanation = await rig.path.explain(Question("queue", "a"))
        assert (explanation.confirm.now, explanation.confirm.left_alone) == (confirms[0], "")
