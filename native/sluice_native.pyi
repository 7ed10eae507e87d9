"""Sluice's compiled extension. It parses frames, checks plain limits, and counts requests.

A RocketMQ frame is *plain* if its header is one unambiguous send or send-back, in JSON or binary. ``Channels`` and
``lend_amqp10`` define plain frames for AMQP 0.9.1 and AMQP 1.0. A limit is *plain* if it consists of a bucket and a
breaker, and its action is to refuse. The extension stops at the first frame that is not plain, and Python reads the
rest. Python also decides on requests that have other limits, or that plain limits do not fully admit. Both languages
share the same state.
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
    """Equivalent to ``limiter.buckets.cell.PythonCell``. Integers are clamped to 64 bits."""

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
    """Equivalent to ``limiter.counting.row.PythonSecond``."""

    number: int
    @property
    def began(self) -> int: ...
    @property
    def entries(self) -> list[Entry]: ...
    def __new__(cls, number: int) -> Self: ...

@final
class Entry:
    """Equivalent to ``limiter.counting.row.PythonEntry``."""

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
    """Equivalent to ``limiter.counting.row.PythonRow``."""

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

# `Cell`, `Live`, `RefusedIds`, `Row` and `Second` replace the Python classes with the same names.

@final
class RefusedIds:
    """Equivalent to ``limiter.counting.repeats.PythonRefusedIds``."""

    def __new__(cls, most: int = 65_536) -> Self: ...
    def see(self, key: int, message_id: bytes, now_ns: int, refused: bool) -> tuple[bool, bool]: ...
    def __len__(self) -> int: ...

@final
class Live:
    """Equivalent to ``limiter.plans.registry.PythonLive``."""

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

    If a name does not have a rule of its own, and its kind's default limit is plain, its limiter is found or created in
    ``live``. Python provides all other limits, and all rows. They are looked up again when a limiter or a row is
    retired, after ``swap``, and after ten seconds.

    Args:
        limits_of: returns the limits for a request's resources at a given time, excluding scopes.
        default_of: returns a kind's default limit if it is plain and no other limit applies.
        row_of: returns a resource's row at a given time.
        no_waiters: returns whether no request is waiting at a given time, so that all stored credit can be granted.
        most: maximum number of cached names.
        live: the live limiters, by dimension.
        own: resources that have a rule of their own.

    Attributes:
        kinds: kinds whose default has been requested.
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
        """Apply new rules: the resources that have a rule of their own, and the defaults of all ``kinds``.

        ``epoch`` is the number of the swap. Limiters must be up to date if their name gains or loses its own rule.
        """
    def __len__(self) -> int: ...

@final
class Callers:
    """A client's limits at one listener, by producer group."""

    def __new__(cls, limits_of: Callable[[str, int], PlainOfCaller]) -> Self: ...

@final
class Shares:
    """The shares of an adaptive limit, keyed by a request's first destination."""

    def __new__(cls, share_of: Callable[[tuple[Resource, ...], int], _PlainLimits]) -> Self: ...

@final
class Requests:
    """The request state of one RocketMQ connection: cached keys and unanswered requests.

    A key is a resource and a producer group. If there are more than ``max_keys``, the next chunk clears the cache. The
    length and the members of this container are the opaques (i32) of unanswered requests. It has room for ``max_owed``
    of them, each of which takes at most about 42 bytes.

    Attributes:
        ambiguous: whether an opaque was added twice, or there was no room for one.
        sends: number of opaques that belong to sends and send-backs.
    """

    def __new__(cls, resources: Resources, max_keys: int, max_owed: int) -> Self: ...
    @property
    def ambiguous(self) -> bool: ...
    @property
    def sends(self) -> int: ...
    def add(self, opaque: int, is_send: bool) -> None:
        """Add an opaque if there is room for it."""
    def settle(self, opaque: int) -> bool | None:
        """Remove an opaque. Return whether it belongs to a send, or None if it is unknown."""
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
        """Read a chunk from one peer while Python serves the sockets. ``side`` is 0 for the client, 1 for the broker.

        Returns:
            - The pieces to write.
            - The number of bytes read. Pass the rest again, followed by more data.
            - Whether the session must take the connection back.
            - The number of frames by peer.
            - Decision times, and round trips, as in ``serve``.
            - The numbers of answers and of busy answers, as in ``take_signals``.
        """
    def take_kept(self) -> tuple[bytes, bytes]:
        """Return each peer's incomplete frame, which the peer's next bytes continue."""
    def take_counts(self) -> tuple[int, int]:
        """Return the numbers of requests and of refused requests since the last call."""
    def unanswered(self) -> int:
        """Return the number of forwarded messages that have not been answered or confirmed."""
    def give_back(self) -> Any:
        """Return the state for the session. Not allowed while a turn serves the connection."""

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
    """Return a reader for an AMQP 0.9.1 connection.

    Each stream must be at the start of a frame, or inside a body that is being forwarded. The reader handles the plain
    publishes of these channels, consumers' settlements, heartbeats, and the broker's confirms, deliveries and returns.
    It leaves publishes that would have to wait, and all other frames, to Python.

    Args:
        judge: decides and counts requests if the reader cannot.
        channels: the connection's channels.
        of_channels: for each channel, the bytes left of the client's open content, and the numbers of publishes if the
            channel has confirms.
        frame_max: maximum length of a frame in bytes, including framing.
        max_body_bytes: publishes with a longer body are left to Python.
        publishes: whether to read publishes.
        routing_keys: whether publishes to an exchange also count for their routing key.
        contents: whether to read deliveries. True only if no rule limits them.
        cuts: for each peer, the channel of the current body frame, and the bytes left, including the end octet.
        deliveries: bytes left of the broker's open contents, by channel.
        timed: the publish whose confirm is timed: its channel, the broker's number, and the time of forwarding.
        kept: each peer's incomplete frame.

    Returns:
        The reader. Its state starts with a tuple for each peer: the number of reads, whether data was written to the
        peer, the bytes left of open contents by channel, and ``cuts``. Then follow the channels whose open content is
        refused, whether any message was published, ``timed``, unwritten refusals by channel, and the numbers of
        channels with confirms.
    """

def lend_amqp10(
    judge: Judge,
    session: LentConnection,
    max_frame_bytes: tuple[int, int],
    timed: tuple[Conversation, int, int, bool] | None,
    unsettled: int,
    kept: tuple[bytes, bytes],
) -> Lent:
    """Return a reader for an AMQP 1.0 connection.

    The reader handles frames of links and sessions that ``session`` knows. The frames must be encoded as in the
    specification's tables, with small ulongs as descriptors and without an extended header:

    - Transfers of complete deliveries that are not aborted or resumed, do not have a state, and have consecutive ids.
      If limits apply to a link's messages, they must be plain and admit all of the messages.
    - Dispositions.
    - Flows without properties. ``session`` answers flows that drain, or that limits do not grant immediately.

    The reader always handles empty frames. It leaves all other frames to Python. After rules change, it leaves every
    frame to Python.

    Args:
        judge: decides and counts requests.
        session: provides the state of links and sessions, and gets reports about the frames read.
        max_frame_bytes: maximum size of a frame that the reader handles, by peer.
        timed: the delivery whose settlement is timed: its session, its id, the start time, and whether it is settled.
        unsettled: number of the client's forwarded deliveries that have not been settled.
        kept: each peer's incomplete frame, at most 64 KiB.

    Returns:
        The reader. Its state is whether it left the first frame to Python.
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
    """Return a reader for a RocketMQ connection.

    Each stream must be at the start of a frame, or inside a frame that has been decided. The reader handles plain
    frames, requests that Python does not need to read, and the answers to both. It leaves requests that ``judge`` would
    hold, and all other frames, to Python.

    Args:
        judge: decides and counts requests if the reader cannot.
        requests: the connection's request state.
        around: returns the two parts of a refusal's header, before and after the opaque.
        max_length: maximum value of a frame's length field.
        max_polls: maximum number of unanswered long polls.
        client: bytes left of the client's current frame, and whether to discard them.
        broker: bytes left of the broker's current frame.
        polls: opaques of unanswered long polls.
        timed: the opaque of the request being timed, and when the latest timed request was forwarded.
        kept: the client's incomplete frame.
        is_new: whether to call ``judge.identify`` with the first header.

    Returns:
        The reader. Its state is ``client``, ``broker``, refusals to write after the broker's frame, ``polls`` and
        whether one of their opaques is ambiguous, and ``timed``.
    """

_Pieces: TypeAlias = tuple[list[bytes | tuple[int, int]], list[bytes | tuple[int, int]]]
"""Data for the client, and data for the broker. A piece is bytes, or the start and end of a range in the chunk."""

_Returned: TypeAlias = tuple[Any, tuple[bytes, bytes], tuple[bytes, bytes], tuple[bytes, bytes], tuple[int, int]]
"""The state of a returned connection.

- The state for the session.
- Each peer's incomplete frame, which counts as read.
- Bytes from each peer that must be read again.
- Data that has not been written to each peer yet.
- The errno from reading from each peer, or 0.
"""

@final
class Turn:
    """Serves the connections that were lent to it. Each call of ``serve`` serves all that are ready.

    A connection *leaves* if its reader cannot handle a frame, or if a stream ends or fails. It is then no longer
    served.

    Args:
        clock: returns monotonic nanoseconds.
        second_at: returns the second at a given time, and when it ends.
        failed: called with a connection's number and an error that was not caused by a peer. It must not call the turn.

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
        """Return a file descriptor that is readable when a connection may be ready."""
    def lend(
        self, client: int, broker: int, lent: Lent, ends_here: bool, unread: tuple[bytes, bytes], scope: int = 0
    ) -> int:
        """Start serving two sockets, which the caller still owns. Return a number that is unique while they are served.

        ``unread`` is data from each peer that the session has received but not read. ``scope`` is a small number by
        which ``take_signals`` groups connections.

        If ``ends_here`` is set and the client's stream ends between two frames, the end is forwarded, and the
        connection closes when the broker's stream ends. Otherwise, the connection leaves.

        Raises:
            OSError: the kernel cannot watch the sockets.
        """
    def serve(
        self, budget_ns: int
    ) -> tuple[bool, list[tuple[int, int]], tuple[int, int], tuple[int, int], list[tuple[int, int]], list[int]]:
        """Serve until no connection is ready or time runs out.

        Returns:
            - Whether no connection is ready.
            - Events as (number, code). The codes are 0: left, 1: the broker stopped reading, 2: the broker resumed
              reading, 3: the client's stream has ended, 4: closed, 5: left because a stream has ended or a socket has
              failed.
            - The number of frames by sending peer.
            - The number of bytes by sending peer.
            - Decision times in nanoseconds, each with the number of requests decided.
            - Round trips to brokers in nanoseconds.
        """
    def take_signals(self) -> list[tuple[int, int, list[int], int]]:
        """Return signals from brokers since the last call, for each scope.

        Returns:
            - The number of sends, publishes and transfers that were answered, confirmed or settled.
            - The number of those that the broker refused because it was busy.
            - Up to 1024 round trips in nanoseconds.
            - The number of unanswered messages on this turn's connections.
        """
    def take_counts(self, number: int) -> tuple[int, int, tuple[int, int], int]:
        """Return requests, refused requests and bytes by peer since the last call, and the time of the last read."""
    def take(self, number: int) -> _Returned:
        """Stop serving a connection and return its state. Its number may be reused."""
    def forget(self, number: int) -> None:
        """Forget a connection whose sockets are closed. Its number may be reused."""
    def __len__(self) -> int: ...

@final
class Channels:
    """The channels of one AMQP 0.9.1 connection while it is lent, and the cached keys of its publishes.

    A publish is *plain* if its method frame sets no bit except mandatory, its header contains at most 4096 bytes of
    properties and no key such as CC or BCC, and its names are printable ASCII. Contents of different channels may
    interleave.

    A publish to the exchange "" counts for the queue that its routing key names. Any other publish counts for its
    exchange, and also for ``EXCHANGE/KEY`` if the connection counts routing keys. ``/`` and ``%`` in a part are written
    as ``%2F`` and ``%25``. The cache is keyed by exchange and routing key, and cleared when it exceeds 1024 keys.

    Args:
        resources: provides the destinations of publishes.
        before_names: prefix of all names.
    """

    def __new__(cls, resources: Resources, before_names: str) -> Self: ...
    def unconfirmed(self) -> int:
        """Return the number of forwarded publishes that have not been confirmed."""
    def names(self) -> list[Resource]:
        """Return the first resource of each cached key."""
