"""Requests of a batch in groups that are decided alike, whether they are there as objects or in columns.

What a batch costs to decide and to count grows with its groups, not with its requests.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from limiter.resource import Resource

if TYPE_CHECKING:
    from proxy.batch import Request


class Group(msgspec.Struct, gc=False):
    """The requests of a batch that are decided alike: the same resources, asked for by the same group.

    Attributes:
        resources: everything they are charged to.
        producer_group: the group that sends them.
        consumes: they ask for messages.
        indexes: of the requests in the batch, ascending.
        messages: their costs, in messages.
        size_bytes: what their costs in bytes add up to, if that is known already.
        order_key: as in the one request that it is, if that has one.
    """

    resources: tuple[Resource, ...]
    producer_group: str
    consumes: bool
    indexes: Sequence[int]
    messages: Sequence[int]
    size_bytes: int | None = None
    order_key: str | int | None = None


class Columns(Sequence["Request"]):
    """Requests that are kept in columns: grouped as they were read, and made into objects only for who looks at one."""

    @abstractmethod
    def groups(self) -> Sequence[Group]:
        """Return them in groups, as ``Batch.groups`` says."""

    @abstractmethod
    def sizes(self, indexes: Sequence[int]) -> Sequence[int]:
        """Return the bytes that some of them are on the wire, in the order of their indexes, which ascend."""

    @abstractmethod
    def answered(self, indexes: Sequence[int]) -> int:
        """Return how many of some, whose indexes ascend, expect an answer."""


def grouped(requests: "Sequence[Request]") -> Sequence[Group]:
    """Put requests in groups, in order of first appearance.

    Where some request has an ``order_key`` each is a group of its own: whether it must wait depends on what became of
    those before it.
    """
    if any(request.order_key is not None for request in requests):
        return [
            Group(
                request.resources,
                request.producer_group,
                request.consumes,
                [index],
                [request.messages],
                order_key=request.order_key,
            )
            for index, request in enumerate(requests)
        ]
    groups: dict[tuple[tuple[Resource, ...], str, bool], Group] = {}
    run: tuple[Resource, ...] | None = None
    producer_group = ""
    consumes = False
    indexes: list[int] = []
    messages: list[int] = []
    for index, request in enumerate(requests):
        # Sessions intern the tuple, so that a run of one topic costs an identity test a message.
        if request.resources is not run or request.producer_group != producer_group or request.consumes is not consumes:
            run, producer_group, consumes = request.resources, request.producer_group, request.consumes
            key = (run, producer_group, consumes)
            group = groups.get(key)
            if group is None:
                indexes, messages = [], []
                groups[key] = Group(run, producer_group, consumes, indexes, messages)
            else:
                indexes, messages = group.indexes, group.messages  # type: ignore[assignment] # lists, as made above
        indexes.append(index)
        messages.append(request.messages)
    return list(groups.values())
