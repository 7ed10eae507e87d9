"""The compiled reader of an AMQP 0.9.1 connection, fed with chunks, with a stand-in for its judge."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sluice_native

from limiter.counting.row import Second
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from proxy.protocols.amqp091.confirms import Confirms, Numbers

from .lending import ASKS

CLIENT, BROKER = 0, 1


class Run(NamedTuple):
    """A question to the judge."""

    resources: tuple[Resource, ...]
    sizes: list[int]


class Read(NamedTuple):
    """The result of a chunk."""

    to_client: bytes
    to_broker: bytes
    stop: int
    leaves: bool
    frames: tuple[int, int]


class Reading:
    """A lent connection whose channels all have confirms, so that each publish reaches its judge.

    ``channels``: of each, the rest of the open body, and its numbers. ``refuses``: returns the refused publishes of a
    run, or None. ``before_names``: prefix of all names. ``routing_keys``: publishes to an exchange also count for their
    routing key. ``contents``: deliveries are not limited. ``runs``: the questions to the judge.
    """

    sender = ids = None
    passed = bypassed = 0
    is_exempt = False

    def __init__(
        self,
        channels: Sequence[int] | Mapping[int, tuple[int, Numbers]] = (1,),
        refuses: Callable[[Run], list[bool]] | None = None,
        *,
        before_names: str = "",
        routing_keys: bool = False,
        frame_max: int = 131_072,
        contents: bool = True,
    ) -> None:
        resources = Limits(ASKS).resources
        assert resources is not None
        self.resources = resources
        self.runs: list[Run] = []
        self._refuses = refuses
        self.channels = sluice_native.Channels(resources, before_names)
        given = channels if isinstance(channels, Mapping) else {each: (0, Confirms().numbers()) for each in channels}
        judge: Any = self
        rest: Any = (1 << 40, True, routing_keys, contents, (None, None), {}, None, (b"", b""))
        self.lent = sluice_native.lend_amqp091(judge, self.channels, given, frame_max, *rest)

    def refresh(self) -> tuple[bool, bool, bool, None]:
        """The connection may stay, all rules refuse, and some limit bytes."""
        return True, True, True, None

    def decide(
        self, _now_ns: int, resources: tuple[Resource, ...], _group: str, count: int, sizes: list[int]
    ) -> list[tuple[int, str | None]]:
        assert len(sizes) == count
        self.runs.append(Run(resources, sizes))
        refused = [False] * count if self._refuses is None else self._refuses(self.runs[-1])
        return [(1, "refused" if each else None) for each in refused]

    def count(self, *_told: object) -> None:
        """Count nothing."""

    def failed(self, error: Exception, _requests: int) -> None:
        """No failure is expected."""
        raise error

    def feed(self, chunk: bytes, side: int = CLIENT) -> Read:
        pieces, stop, leaves, of_peers, _, _, _ = self.lent.feed(side, chunk, 0, lambda: 0, Second(0))
        to_client, to_broker = (
            b"".join(piece if isinstance(piece, bytes) else chunk[slice(*piece)] for piece in of_peer)
            for of_peer in pieces
        )
        return Read(to_client, to_broker, stop, leaves, (of_peers[0], of_peers[1]))

    def give_back(self) -> tuple[dict[int, int], dict[int, Numbers]]:
        """Return the rests of the client's open contents, and the numbers, by channel."""
        ((_, _, rests, _), _), *_, numbers = self.lent.give_back()
        return rests, dict(numbers)
