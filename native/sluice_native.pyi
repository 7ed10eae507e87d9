"""The compiled part of Sluice: parses the frames of a chunk, checks plain limits, and counts.

A RocketMQ frame is *plain* if its header is one unambiguous send or send-back, JSON or binary. For AMQP 0.9.1 see
``Channels``, for AMQP 1.0 ``lend_amqp10``. A limit is *plain* if it is a bucket and a breaker, and refuses. A scan ends
at the first frame that is not plain. Python reads the rest, and decides requests with other limits or that plain limits
do not fully admit, with the same state.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, final

from typing_extensions import Buffer, disjoint_base

from limiter.buckets.limiter import Limiter
from limiter.counting import row
from limiter.deciding.limits import PlainDefault, PlainLimit, PlainOfCaller
from limiter.plans import registry
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from proxy.deciding.batch import Refuse
from proxy.deciding.judge import Judge
from proxy.protocols.amqp091.confirms import Numbers
from proxy.protocols.amqp10.conversation import Conversation
from proxy.protocols.amqp10.lent import LentConnection

__all__ = [
    "INTERFACE",
    "Callers",
    "Cell",
    "Channels",
    "Entry",
    "Lent",
    "Live",
    "RefusedIds",
    "Requests",
    "Resources",
    "Row",
    "Second",
    "Shares",
    "Turn",
    "lend_amqp091",
    "lend_amqp10",
    "lend_rocketmq",
]

INTERFACE: Final[int]

@disjoint_base
class Cell:
    """``limiter.buckets.cell.PythonCell`` with 64-bit integers. Values outside that range are clamped."""

    resource: Resource
    rule: Rule

    rate_upermits_per_s: int
    capacity_upermits: int
    stored_upermits: int
    forgiven_upermits: int
    max_debt_upermits: int
    at_ns: int
    open_next_free_ns: int | None
    last_refused_ns: int | None
    last_wait_us: int
    asked_ns: int
    epoch: int
    pinned: bool
    retired: bool
    def __new__(cls, *_args: object, **_kwargs: object) -> Self: ...
    def refill(self, now_ns: int) -> int: ...
    def admits(self, now_ns: int, before: int, permits: int) -> bool: ...
    def spend(self, permits: int) -> None: ...

@final
class Second:
    """As ``limiter.counting.row.PythonSecond``."""

    number: int
    @property
    def began(self) -> int: ...
    @property
    def entries(self) -> list[Entry]: ...
    def __new__(cls, number: int) -> Self: ...

@final
class Entry:
    """As ``limiter.counting.row.PythonEntry``."""

    @property
    def resource(self) -> Resource: ...
    @property
    def told(self) -> int: ...
    @property
    def more(self) -> bool: ...
    def amounts(self) -> list[tuple[int, int, int]]: ...
    def asked(self) -> list[tuple[Any, int, int]]: ...

@final
class Row:
    """As ``limiter.counting.row.PythonRow``."""

    seen_ns: int
    retired: bool
    repeats_until_ns: int
    @property
    def shared(self) -> bool: ...
    @property
    def resource(self) -> Resource: ...
    @property
    def spent_in(self) -> int: ...
    def __new__(cls, resource: Resource, *, shared: bool = False) -> Self: ...
    def add(
        self,
        second: Second,
        now_ns: int,
        sender: object,
        outcome: int,
        requests: int,
        messages: int,
        size_bytes: int,
        told: int = 0,
    ) -> None: ...
    def totals(self) -> list[tuple[int, int, int]]: ...
    def fold(self, amounts: Sequence[tuple[int, int, int]]) -> None: ...
    def spend(self, second: Second, dimension: int, permits: int) -> None: ...
    def used(self, number: int, dimension: int) -> list[int] | None: ...

_PlainLimits: TypeAlias = Sequence[PlainLimit] | None
"""Limits that are checked together, or None if they are not plain."""

# `Cell`, `Live`, `RefusedIds`, `Row` and `Second` replace the Python classes of these names.

@final
class RefusedIds:
    """As ``limiter.counting.repeats.PythonRefusedIds``."""

    def __new__(cls, most: int = 65_536) -> Self: ...
    def see(self, key: int, message_id: bytes, now_ns: int, refused: bool) -> tuple[bool, bool]: ...
    def __len__(self) -> int: ...

@final
class Live:
    """As ``limiter.plans.registry.PythonLive``."""

    @property
    def overflow(self) -> dict[str, Limiter]: ...
    @property
    def unpinned(self) -> int: ...
    @property
    def evicted_total(self) -> int: ...
    def __new__(cls, max_live: int, is_idle: Callable[[Resource, int], bool]) -> Self: ...
    def __len__(self) -> int: ...
    def get(self, resource: Resource) -> Limiter | None: ...
    def all(self) -> list[Limiter]: ...
    def put(self, limiter: Limiter) -> None: ...
    def pin(self, limiter: Limiter, pinned: bool) -> None: ...
    def make_room(self, now_ns: int, epoch: int) -> bool: ...

@final
class Resources:
    """The destinations of requests by kind and name, each with its limits and row.

    If a name has no own rule, and its kind's default is plain, its limiter is found or created in ``live``. Python
    provides all other limits, and the rows. It is asked again when a limiter or a row is retired, after ``swap``, and
    after ten seconds.

    Args:
        limits_of: returns the limits of a request's resources at a time, excluding scopes.
        default_of: returns a kind's default limit if it is plain and no other limit applies.
        row_of: returns the row of a resource at a time.
        no_waiters: returns whether all credit in store can be granted at a time.
        most: maximum number of cached names.
        live: the live limiters, by dimension.
        own: resources with their own rule.

    Attributes:
        kinds: kinds whose default was requested.
    """

    @property
    def kinds(self) -> list[str]: ...
    def __new__(
        cls,
        limits_of: Callable[[tuple[Resource, ...], int], _PlainLimits],
        default_of: Callable[[str], PlainDefault | None],
        row_of: Callable[[Resource, int], row.Row],
        no_waiters: Callable[[int], bool],
        most: int,
        live: Sequence[registry.Live],
        own: dict[Resource, Rule],
    ) -> Self: ...
    def swap(self, epoch: int, own: dict[Resource, Rule], defaults: dict[str, PlainDefault | None]) -> None:
        """Apply new rules: resources with their own rule, and the defaults of all ``kinds``.

        ``epoch`` is the number of the swap. Limiters of names that gain or lose their own rule must be up to date.
        """
    def __len__(self) -> int: ...

@final
class Callers:
    """The limits of one client at one listener, by producer group."""

    def __new__(cls, limits_of: Callable[[str, int], PlainOfCaller]) -> Self: ...

@final
class Shares:
    """The shares of an adaptive limit by first destination."""

    def __new__(cls, share_of: Callable[[tuple[Resource, ...], int], _PlainLimits]) -> Self: ...

@final
class Requests:
    """The request state of one RocketMQ connection: cached keys and unanswered requests.

    A key is a resource and a producer group. If there are more than ``max_keys``, the next chunk clears the cache. As a
    container, it holds the opaques (i32) of up to ``max_owed`` requests, in at most about 42 bytes each.

    Attributes:
        ambiguous: whether an opaque was added twice, or there was no room for one.
        sends: number of opaques that are of sends and send-backs.
    """

    def __new__(cls, resources: Resources, max_keys: int, max_owed: int) -> Self: ...
    @property
    def ambiguous(self) -> bool: ...
    @property
    def sends(self) -> int: ...
    def add(self, opaque: int, is_send: bool) -> None:
        """Add an opaque. No effect if there is no room."""
    def settle(self, opaque: int) -> bool | None:
        """Remove an opaque. Return whether it is of a send, or None if it is unknown."""
    def __len__(self) -> int: ...
    def __contains__(self, opaque: int, /) -> bool: ...
    def names(self) -> list[Resource]:
        """Return the resources of the cached keys."""

@final
class Lent:
    """Reads both streams of a connection."""

    def feed(
        self, side: int, chunk: Buffer, now_ns: int, clock: Callable[[], int], second: row.Second
    ) -> tuple[
        _Pieces,
        int,
        bool,
        tuple[int, int],
        list[tuple[int, int]],
        list[int],
        tuple[int, int],
    ]:
        """Read a chunk of one peer, 0 for the client and 1 for the broker, while Python serves the sockets.

        Returns:
            The pieces to write. The number of bytes read: pass the rest again, followed by more. Whether the session
            must take the connection back. Frames by peer. Decision times and round trips as in ``serve``. Answers and
            busy answers as in ``take_signals``.
        """
    def take_kept(self) -> tuple[bytes, bytes]:
        """Return each peer's incomplete frame, which precedes its next bytes."""
    def take_counts(self) -> tuple[int, int]:
        """Return the numbers of requests and of refused requests since the last call."""
    def unanswered(self) -> int:
        """Return the number of forwarded messages that are unanswered or unconfirmed."""
    def give_back(self) -> Any:
        """Return the state for the session. Not while a turn serves the connection."""

def lend_amqp091(
    judge: Judge,
    channels: Channels,
    of_channels: Mapping[int, tuple[int, Numbers | None]],
    frame_max: int,
    max_body_bytes: int,
    publishes: bool,
    routing_keys: bool,
    contents: bool,
    cuts: tuple[tuple[int, int] | None, tuple[int, int] | None],
    deliveries: Mapping[int, int],
    timed: tuple[int, int, int] | None,
    kept: tuple[bytes, bytes],
) -> Lent:
    """Return a reader of an AMQP 0.9.1 connection, which must be between two frames or inside a forwarded body.

    It reads the plain publishes of these channels, consumers' settlements, heartbeats, and the broker's confirms,
    deliveries and returns. It leaves the rest to Python, including publishes that would have to wait.

    Args:
        judge: decides and counts what the compiled part cannot.
        channels: the channels of the connection.
        of_channels: by channel, the bytes left of the client's open content, and the numbers of publishes if it has
            confirms.
        frame_max: maximum length of a frame in bytes, with framing.
        max_body_bytes: publishes with a longer body are left to Python.
        publishes: whether to read publishes.
        routing_keys: whether publishes to an exchange also count for their routing key.
        contents: whether to read deliveries, because no rule limits them.
        cuts: by peer, channel of the current body frame, and its bytes left including the end octet.
        deliveries: bytes left of the broker's open contents by channel.
        timed: the publish whose confirm is timed: channel, broker's number, and time of forwarding.
        kept: the incomplete frame of each peer.

    Returns:
        The reader. Its state is: by peer, number of reads, whether data was written to it, bytes left of open contents
        by channel, and ``cuts``. Then channels whose open content is refused, whether any message was published,
        ``timed``, own unwritten answers by channel, and numbers of channels with confirms.
    """

def lend_amqp10(
    judge: Judge,
    session: LentConnection,
    max_frame_bytes: tuple[int, int],
    timed: tuple[Conversation, int, int, bool] | None,
    unsettled: int,
    kept: tuple[bytes, bytes],
) -> Lent:
    """Return a reader of an AMQP 1.0 connection.

    It reads frames of links and sessions that ``session`` knows, if they are encoded as in the specification's tables,
    with small ulongs as descriptors and without an extended header:

    - transfers of whole deliveries, not aborted or resumed, without a state, with ids ascending by one. If a link's
      messages are decided, plain limits must admit all of them.
    - dispositions.
    - flows without properties. ``session`` answers those that limits do not grant immediately, or that drain.

    It always reads empty frames. It leaves the rest to Python, and everything after a change of rules.

    Args:
        judge: decides and counts.
        session: provides the state of links and sessions, and gets reports of frames read.
        max_frame_bytes: maximum size of frames read here, by peer.
        timed: the delivery whose settlement is timed: session, id, start, and whether it is settled.
        unsettled: number of forwarded deliveries of the client that are not settled.
        kept: the incomplete frame of each peer, at most 64 KiB.

    Returns:
        The reader. Its state is whether it left at the first bytes.
    """

def lend_rocketmq(
    judge: Judge,
    requests: Requests,
    around: Callable[[Refuse], tuple[bytes, bytes]],
    max_length: int,
    max_polls: int,
    client: tuple[int, bool],
    broker: int,
    polls: Sequence[int],
    timed: tuple[int | None, int],
    kept: bytes,
    is_new: bool,
) -> Lent:
    """Return a reader of a RocketMQ connection, which must be between two frames or inside a decided one.

    It reads plain frames, requests that Python does not need to read, and the answers to both. It leaves the rest to
    Python, including requests that ``judge`` would hold.

    Args:
        judge: decides and counts what the compiled part cannot.
        requests: the request state of the connection.
        around: returns the header of a refusal before and after the opaque.
        max_length: maximum value of a frame's length field.
        max_polls: maximum number of outstanding long polls.
        client: bytes left of the client's current frame, and whether to discard them.
        broker: bytes left of the broker's current frame.
        polls: opaques of long polls without an answer.
        timed: opaque of the timed request, and when it or the last one was forwarded.
        kept: the client's incomplete frame.
        is_new: whether to call ``judge.identify`` with the first header.

    Returns:
        The reader. Its state is ``client``, ``broker``, own answers to write after the broker's frame, polls and
        whether one of their opaques is ambiguous, and ``timed``.
    """

_Pieces: TypeAlias = tuple[list[bytes | tuple[int, int]], list[bytes | tuple[int, int]]]
"""Data for the client and for the broker: bytes, or start and end in the current chunk."""

_Returned: TypeAlias = tuple[Any, tuple[bytes, bytes], tuple[bytes, bytes], tuple[bytes, bytes], tuple[int, int]]
"""State of a returned connection.

The state for the session. Then by peer: the incomplete frame, which counts as read, or bytes to be read again. Data not
written yet. The errno from reading, or 0.
"""

@final
class Turn:
    """Serves all ready connections that were lent to it, in one call.

    A connection leaves when its reader cannot handle a frame, or a stream ends or fails.

    Args:
        clock: returns monotonic nanoseconds.
        second_at: returns the second at a time, and its end.
        failed: called with a connection number and an error not caused by a peer. It must not call the turn.

    Attributes:
        system_calls: number of system calls so far.
    """

    def __new__(
        cls,
        clock: Callable[[], int],
        second_at: Callable[[int], tuple[Second, int]],
        failed: Callable[[int, Exception], object],
    ) -> Self: ...
    @property
    def system_calls(self) -> int: ...
    def fileno(self) -> int:
        """Return a descriptor that is readable when a connection may be ready."""
    def lend(
        self, client: int, broker: int, lent: Lent, ends_here: bool, unread: tuple[bytes, bytes], scope: int = 0
    ) -> int:
        """Serve two sockets, which the caller keeps. Return a number that is unique among current connections.

        ``unread`` is data from each peer that the session has received but not read. ``take_signals`` groups by the
        small number ``scope``.

        With ``ends_here``, the end of a client's stream between frames is forwarded, and the connection closes when
        the broker's stream ends. Otherwise it leaves.

        Raises:
            OSError: the kernel cannot watch the sockets.
        """
    def serve(
        self, budget_ns: int
    ) -> tuple[bool, list[tuple[int, int]], tuple[int, int], tuple[int, int], list[tuple[int, int]], list[int]]:
        """Serve until no connection is ready or time runs out.

        Returns:
            Whether no connection is ready. Events as (number, code): 0 left, 1 the broker stopped reading, 2 it reads
            again, 3 the client's stream has ended, 4 closed, 5 left because a stream has ended or a socket has failed.
            Frames and bytes by sending peer. Decision times in nanoseconds with their numbers of requests. Round trips
            to brokers in nanoseconds.
        """
    def take_signals(self) -> list[tuple[int, int, list[int], int]]:
        """Return the signals of brokers since the last call, by scope.

        Returns:
            The numbers of sends, publishes and transfers that were answered, confirmed or settled, and of those refused
            as busy. Up to 1024 round trips in nanoseconds. The number of unanswered messages on connections of this
            turn.
        """
    def take_counts(self, number: int) -> tuple[int, int, tuple[int, int], int]:
        """Return requests, refused requests, and bytes by peer since the last call, and when a peer was last read."""
    def take(self, number: int) -> _Returned:
        """Stop serving a connection and return its state. Its number may be reused."""
    def forget(self, number: int) -> None:
        """Forget a connection whose sockets are closed. Its number may be reused."""
    def __len__(self) -> int: ...

@final
class Channels:
    """The channels of one AMQP 0.9.1 connection while it is lent, and the cached keys of its publishes.

    A publish is *plain* if its method frame has no bit except mandatory, its header has at most 4096 bytes of
    properties without a key like CC or BCC, and its names are printable ASCII. Contents of several channels may
    interleave.

    A publish to the exchange "" counts for the queue named by its routing key. Any other counts for its exchange, and
    on request also for ``EXCHANGE/KEY``. ``/`` and ``%`` in a part are written as ``%2F`` and ``%25``. A key is an
    exchange and a routing key. Above 1024 keys, the cache is cleared.

    Args:
        resources: provides the destinations of publishes.
        before_names: prefix of all names.
    """

    def __new__(cls, resources: Resources, before_names: str) -> Self: ...
    def unconfirmed(self) -> int:
        """Return the number of forwarded, unconfirmed publishes."""
    def names(self) -> list[Resource]:
        """Return the first resource of each cached key."""
