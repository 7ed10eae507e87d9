"""Consumer groups: members, subscriptions, offsets and locks."""

import pytest

from proxy.loopback.groups import Group, Groups, Subscription, tag_filter


def _group() -> Group[str]:
    return Group("readers")


def test_joining_again_changes_nothing() -> None:
    group = _group()
    subscription = Subscription("orders", "*", 1)
    assert group.join("one", "client-1", [subscription])
    assert not group.join("one", "client-1", [subscription])
    assert group.join("two", "client-2", [subscription])
    assert group.client_ids() == ["client-1", "client-2"]
    assert group.leave("one")
    assert not group.leave("one")
    assert group.client_ids() == ["client-2"]


def test_client_with_two_connections_is_listed_once() -> None:
    group = _group()
    group.join("one", "client", [])
    group.join("two", "client", [])
    assert group.client_ids() == ["client"]


def test_later_subscription_replaces_an_earlier_one_and_not_the_other_way() -> None:
    group = _group()
    group.join("one", "client", [Subscription("orders", "a", 2)])
    assert not group.join("one", "client", [Subscription("orders", "old", 1)])
    assert group.subscriptions["orders"].expression == "a"
    assert not group.join("one", "client", [Subscription("orders", "b", 3)])
    assert group.subscriptions["orders"].expression == "b"
    assert group.join("one", "client", [Subscription("invoices", "*", 4)])
    assert list(group.subscriptions) == ["invoices"]


def test_heartbeat_without_subscriptions_keeps_them() -> None:
    group = _group()
    group.join("one", "client", [Subscription("orders", "*")])
    assert not group.join("one", "client", None)
    assert list(group.subscriptions) == ["orders"]


def test_lock_is_exclusive_until_it_ends_or_is_released() -> None:
    group, key = _group(), ("orders", 0)
    assert group.lock(key, "a", now_ns=0, expiry_ns=10)
    assert group.lock(key, "a", now_ns=5, expiry_ns=10)
    assert not group.lock(key, "b", now_ns=14, expiry_ns=10)
    assert group.has_locks(14)
    assert group.lock(key, "b", now_ns=15, expiry_ns=10)
    group.unlock(key, "a")
    assert group.has_locks(24)
    group.unlock(key, "b")
    assert not group.has_locks(16)
    group.unlock(key, "b")


def test_groups_are_bounded() -> None:
    groups: Groups[str] = Groups(max_groups=1)
    group = groups.make("a")
    assert group is not None
    assert groups.make("a") is group
    assert groups.make("b") is None
    assert groups.get("b") is None


@pytest.mark.parametrize(("name", "legal"), [("g" * 120, True), ("", False), ("g" * 121, False), ("a b", False)])
def test_name_of_a_group_leaves_room_for_its_retry_topic(name: str, legal: bool) -> None:  # noqa: FBT001 - a parameter of the test
    groups: Groups[str] = Groups(max_groups=1)
    assert (groups.make(name) is not None) is legal


@pytest.mark.parametrize(
    ("expression", "wanted", "unwanted"),
    [("a", ["a"], ["", "b", "A"]), ("a || b", ["a", "b"], ["", "c", "a || b"]), (" a||", ["a"], [""])],
)
def test_tags_are_filtered(expression: str, wanted: list[str], unwanted: list[str]) -> None:
    accepts = tag_filter(expression)
    assert accepts is not None
    assert all(accepts(tag) for tag in wanted)
    assert not any(accepts(tag) for tag in unwanted)


@pytest.mark.parametrize("expression", ["*", ""])
def test_star_wants_everything(expression: str) -> None:
    assert tag_filter(expression) is None
