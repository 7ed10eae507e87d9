"""The compiled reading of an AMQP 0.9.1 connection, which feeds on chunks and is judged by a stand-in."""

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
    """What the judge was asked about at once."""

    resources: tuple[Resource, ...]
    sizes: list[int]


class Read(NamedTuple):
    """What came of a chunk."""

    to_client: bytes
    to_broker: bytes
    stop: int
    leaves: bool
    frames: tuple[int, int]


class Reading:
    """A lent connection. All channels have confirms, so that its judge is asked about each publish.

    Args:
        channels: of each the rest of the body that is open, and its numbers.
        refuses: says which of a run are refused; None: none.
        before_names: how all names begin.
        routing_keys: publishes to an exchange are for their routing key, too.
        frame_max: the length of the longest frame.
        contents: deliveries are not limited.

    Attributes:
        runs: what the judge was asked about.
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
        """Say that the connection may stay, that all rules refuse, and that some limit bytes."""
        return True, True, True, None

    def decide(
        self, _now_ns: int, resources: tuple[Resource, ...], _group: str, count: int, sizes: list[int]
    ) -> list[tuple[int, str | None]]:
        """Decide a run."""
        assert len(sizes) == count
        self.runs.append(Run(resources, sizes))
        refused = [False] * count if self._refuses is None else self._refuses(self.runs[-1])
        return [(1, "refused" if each else None) for each in refused]

    def count(self, *_told: object) -> None:
        """Take note of nothing."""

    def failed(self, error: Exception, _requests: int) -> None:
        """Nothing may fail here."""
        raise error

    def feed(self, chunk: bytes, side: int = CLIENT) -> Read:
        """Have a chunk read."""
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
