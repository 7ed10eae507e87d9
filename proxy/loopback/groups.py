"""Consumer groups: who is in them, what they subscribe to, how far they have read, and which queues they locked.

Plain tables. A member is any hashable that stands for one connection; times are ``now_ns``.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from proxy.loopback.records import MAX_TOPIC_BYTES
from proxy.loopback.store import is_legal_name
from proxy.protocols.rocketmq.codes import RETRY_PREFIX

#: A group's retry topic must still be a topic.
_MAX_NAME: Final = MAX_TOPIC_BYTES - len(RETRY_PREFIX)

Member = TypeVar("Member", bound=Hashable)

QueueKey = tuple[str, int]
"""A topic's name and a queue's number."""


class Subscription(msgspec.Struct, frozen=True):
    """What a group wants of one topic.

    Attributes:
        topic: name of the topic.
        expression: ``*``, or tags joined by ``||``.
        version: the client's own; a later one replaces an earlier one.
        kind: ``TAG``, or another language that this broker does not speak.
    """

    topic: str
    expression: str
    version: int = 0
    kind: str = "TAG"


def tag_filter(expression: str) -> Callable[[str], bool] | None:
    """Return what says by a message's tag whether an expression wants it, or None for every message."""
    if expression in ("", "*"):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return tags.__contains__


class Group(Generic[Member]):
    """One consumer group.

    Attributes:
        members: the connections that consume in it, with their client ids.
        subscriptions: by topic.
        offsets: next message to consume, by queue.
        locks: which client id holds a queue, and until when.
        fingerprint: the last heartbeat's, for the version 2 of heartbeats.
        broadcasting: each member gets every message, so nobody has to share queues.
    """

    __slots__ = ("broadcasting", "fingerprint", "locks", "members", "name", "offsets", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Member, str] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.offsets: dict[QueueKey, int] = {}
        self.locks: dict[QueueKey, tuple[str, int]] = {}
        self.fingerprint = 0
        self.broadcasting = False

    def client_ids(self) -> list[str]:
        """Return the ids of its consumers, each once."""
        return list(dict.fromkeys(self.members.values()))

    def join(self, member: Member, client_id: str, subscriptions: Iterable[Subscription] | None) -> bool:
        """Take a heartbeat; ``None`` leaves the subscriptions as they are.

        Returns:
            Whether members or subscribed topics changed, so that the group has to share its queues anew.
        """
        changed = self.members.get(member) != client_id
        self.members[member] = client_id
        if subscriptions is None:
            return changed
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = changed or wanted.keys() != self.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.version > subscription.version:
                wanted[topic] = known
        self.subscriptions = wanted
        return changed

    def leave(self, member: Member) -> bool:
        """Remove a member; returns whether it was one."""
        return self.members.pop(member, None) is not None

    def lock(self, key: QueueKey, client_id: str, now_ns: int, expiry_ns: int) -> bool:
        """Lock a queue for a client, or renew its lock; returns whether it holds it now."""
        holder, until_ns = self.locks.get(key, (client_id, now_ns))
        if holder != client_id and until_ns > now_ns:
            return False
        self.locks[key] = (client_id, now_ns + expiry_ns)
        return True

    def unlock(self, key: QueueKey, client_id: str) -> None:
        """Release a queue, if that client holds it."""
        if self.locks.get(key, ("", 0))[0] == client_id:
            del self.locks[key]

    def has_locks(self, now_ns: int) -> bool:
        """Return whether some queue is locked, i.e. the group consumes in order."""
        return any(until_ns > now_ns for _, until_ns in self.locks.values())


class Groups(Generic[Member]):
    """All groups by name; their number is bounded, and a group that was made once stays."""

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._by_name: dict[str, Group[Member]] = {}

    def get(self, name: str) -> Group[Member] | None:
        """Return a group that is known."""
        return self._by_name.get(name)

    def make(self, name: str) -> Group[Member] | None:
        """Return a group, made if it is not known; None when its name is illegal or there are too many."""
        group = self._by_name.get(name)
        if group is None and len(self._by_name) < self._max_groups and is_legal_name(name, _MAX_NAME):
            group = self._by_name[name] = Group(name)
        return group
