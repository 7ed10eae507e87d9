from typing import Any

import pytest
from changes import make

from admin.edits import wording


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (None, "none"),
        ({"rate": 500.0}, "500/s"),
        ({"rate": 0.25, "count": "requests"}, "0.25 requests/s"),
        ({"rate": 5, "fair_by": "producer_group"}, "5/s, shared by producer group"),
        ({"rate": 5.0, "bytes_per_s": 1048576.0}, "5/s + 1048576 bytes/s"),
        ({"rate": "unlimited", "bytes_per_s": 10}, "10 bytes/s"),
        ({"rate": "unlimited"}, "unlimited"),
        ({"exempt": True}, "exempt"),
        ({"adaptive": True, "floor": 200.0, "ceiling": None}, "adaptive, at least 200/s"),
        (
            {"adaptive": True, "floor": 1, "ceiling": 5000.0, "fair_by": "topic", "action": "off"},
            "off (adaptive, at least 1/s, at most 5000/s, shared by topic)",
        ),
        ({"rate": 5, "action": "off"}, "off (5/s)"),
        ({"rate": 5, "fleet": True}, "5/s for the fleet"),
        ({"limiting": False}, "off"),
    ],
)
def test_a_limit_is_written_in_short(limit: dict[str, Any] | None, text: str) -> None:
    assert wording.short(limit) == text


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({"rate": 500, "burst_s": 1}, {"rate": 1000, "burst_s": 2}, "500/s → 1000/s, burst_s 1 → 2"),
        ({"rate": 500}, {"rate": 500, "busy_code": 215}, "500/s, busy_code not set → 215"),
        ({"rate": 500, "days": ["mon"]}, {"rate": 500}, "500/s, days mon → not set"),
        (None, {"rate": 500, "burst_s": 1}, "none → 500/s"),
        ({"rate": 500, "burst_s": 1}, None, "500/s → none"),
        ({"limiting": True}, {"limiting": False}, "on → off"),
        # A field with its default, and relevant only with another field, has not changed with that.
        (
            {"rate": 5, "fair_by": "client", "max_fair_keys": 32},
            {"rate": 5, "fair_by": None, "max_fair_keys": 32},
            "5/s, shared by client → 5/s",
        ),
        (
            {"rate": 5, "action": "reject", "max_delay_s": 1.0},
            {"rate": 5, "action": "delay", "max_delay_s": 1.0},
            "5/s, action reject → delay",
        ),
        (
            {"rate": 5, "fair_by": None, "max_fair_keys": 32},
            {"rate": 5, "fair_by": "client", "max_fair_keys": 64},
            "5/s → 5/s, shared by client, max_fair_keys not set → 64",
        ),
        (
            {"rate": 5, "confirm": "broker", "fallback": "persist"},
            {"rate": 5, "confirm": "after_consume", "fallback": "nack"},
            "5/s, confirm broker → after_consume, fallback not set → nack",
        ),
        ({"rate": 5, "weight": 1}, {"rate": 5, "weight": 3}, "5/s, weight 1 → 3"),
        ({"rate": 0.0001}, {"rate": 2.00005}, "0.0001/s → 2.00005/s"),
    ],
)
def test_a_change_lists_the_differences(old: Any, new: Any, text: str) -> None:
    assert wording.difference(make(old=old, new=new)) == text


def test_a_change_names_the_inherited_rule() -> None:
    inherited, own = {"rate": 500, "burst_s": 9}, {"rate": 7, "burst_s": 3}
    change = make(old=inherited, old_rule="topic:a-*", new=own)
    assert wording.difference(change) == "500/s (by a-*) → 7/s"
    change = make(old=inherited, old_rule="topic:a-*", new=inherited | {"fair_by": "client"})
    assert wording.difference(change) == "500/s (by a-*) → 500/s, shared by client"
    change = make(old=own, new=inherited, new_rule="topic:*")
    assert wording.difference(change) == "7/s → 500/s (by the default)"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("limits/topic/orders/eu", "topic orders/eu"),
        ("switches/all", "switch all"),
        ("configuration", "configuration"),
    ],
)
def test_a_target_is_written_as_it_is_typed(target: str, text: str) -> None:
    assert wording.target(target) == text
