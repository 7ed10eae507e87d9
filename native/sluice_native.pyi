"""The compiled part of Sluice: reads the frames of a chunk, decides what plain limits admit, and counts.

A frame of RocketMQ is *plain* if its header is one send or send-back, JSON or binary, whose meaning is beyond doubt;
what is plain of AMQP 0.9.1 ``Channels`` says, and of AMQP 1.0 ``lend_amqp10``. Nothing else is read here: whatever is
not plain ends a scan. A limit is *plain* if it is a bucket and a breaker, and refuses. What a chunk asks for is decided
here as far as all its limits are plain and admit all of it; the rest is left to Python, which decides by the same
state.
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
"""Another number whenever what is offered, or what it means, changes."""

@disjoint_base
class Cell:
    """The state of a limiter: ``limiter.buckets.cell.PythonCell``, in 64 bits for each figure.

    What is set to more than these hold becomes the nearest that they do.
    """

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
    looks_until_ns: int
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
"""Limits that are asked together; None: they are not plain."""

# `Cell`, `Live`, `RefusedIds`, `Row` and `Second` are known to Python by the names of its own classes, whose place they
# take.

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
    """What requests are for, by kind and name, with the limits and the row of each.

    The limiter of a name without a rule of its own, under a plain default of its kind, is found or made in ``live``. Of
    all else Python says which limits there are. It is asked again when a limiter or a row is retired, after ``swap``,
    and after ten seconds; and so it is for the row that a name is counted in.

    Args:
        limits_of: the limits of what a request is for at a time, its scopes aside.
        default_of: of a kind, what limits each name without a rule of its own, if that is plain and nothing else does.
        row_of: the row that a resource is counted in, at a time.
        nobody_waits: whether all credit in store is granted at a time.
        most: names that are remembered.
        live: by dimension, the live limiters.
        own: what has a rule of its own.

    Attributes:
        kinds: those whose default was asked for.
    """

    @property
    def kinds(self) -> list[str]: ...
    def __new__(
        cls,
        limits_of: Callable[[tuple[Resource, ...], int], _PlainLimits],
        default_of: Callable[[str], PlainDefault | None],
        row_of: Callable[[Resource, int], row.Row],
        nobody_waits: Callable[[int], bool],
        most: int,
        live: Sequence[registry.Live],
        own: dict[Resource, Rule],
    ) -> Self: ...
    def swap(self, epoch: int, own: dict[Resource, Rule], defaults: dict[str, PlainDefault | None]) -> None:
        """Go by other rules from now on: what has a rule of its own, and the defaults of all ``kinds``.

        ``epoch`` is the number of the swap. Limiters of names that get or lose a rule of their own are up to date.
        """
    def __len__(self) -> int: ...

@final
class Callers:
    """The limits of one client at one listener; ``limits_of`` is asked for those of a producer group at a time."""

    def __new__(cls, limits_of: Callable[[str, int], PlainOfCaller]) -> Self: ...

@final
class Shares:
    """The shares of an adaptive limit, by what is asked for first; ``share_of`` says which that is."""

    def __new__(cls, share_of: Callable[[tuple[Resource, ...], int], _PlainLimits]) -> Self: ...

@final
class Requests:
    """What is remembered of the requests of one RocketMQ connection: their keys, and which have no answer yet.

    A chunk that begins with more than ``most_keys``, each a resource and a producer group, forgets all. As a container
    it has the numbers (i32) of requests that have no answer, ``most_owed`` at most, in some 42 bytes each at worst.

    Attributes:
        ambiguous: a number was added that was there already, or for which there was no room.
        sends: how many of the numbers are those of sends and send-backs.
    """

    def __new__(cls, resources: Resources, most_keys: int, most_owed: int) -> Self: ...
    @property
    def ambiguous(self) -> bool: ...
    @property
    def sends(self) -> int: ...
    def add(self, opaque: int, is_send: bool) -> None:
        """Add a number; without effect when there is no room."""
    def settle(self, opaque: int) -> bool | None:
        """Take a number out; returns whether it is a send's, or None if it was not there."""
    def __len__(self) -> int: ...
    def __contains__(self, opaque: int, /) -> bool: ...
    def names(self) -> list[Resource]:
        """Return the resources of the keys that are remembered."""

@final
class Lent:
    """What reads both streams of a connection that is lent to a ``Turn``."""

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
        """Read a chunk of one peer, 0 for the client's and 1 for the broker's; Python serves their sockets.

        Returns:
            What is to be written. How much of the chunk was read: the rest comes again, with more behind it. Whether it
            is for the session instead. Frames by peer, how long decisions took and of how many requests, and how long
            the broker took, as ``serve`` has it. And as of ``take_signals``, answers and busy ones.
        """
    def take_kept(self) -> tuple[bytes, bytes]:
        """Return, by peer, the beginning of a frame, which comes before the next bytes."""
    def take_counts(self) -> tuple[int, int]:
        """Return requests and refused ones since the last call."""
    def unanswered(self) -> int:
        """Return how many messages have passed and wait for their answer or confirm."""
    def give_back(self) -> Any:
        """Return what its session has to know to go on without; only while no turn has it."""

def lend_amqp091(
    judge: Judge,
    channels: Channels,
    of_channels: Mapping[int, tuple[int, Numbers | None]],
    frame_max: int,
    most_body_bytes: int,
    publishes: bool,
    routing_keys: bool,
    contents: bool,
    cuts: tuple[tuple[int, int] | None, tuple[int, int] | None],
    deliveries: Mapping[int, int],
    timed: tuple[int, int, int] | None,
    kept: tuple[bytes, bytes],
) -> Lent:
    """Return what reads an AMQP 0.9.1 connection between two frames, or within a body that passes.

    It takes the plain publishes of these channels, what consumers settle there, heartbeats, and the broker's confirms,
    deliveries and returns. It leaves the rest to Python, and any publish that would have to wait.

    Args:
        judge: decides and counts what the compiled part does not.
        channels: of the connection.
        of_channels: of each the rest of the body of the client's open content, and its numbers if it has confirms.
        frame_max: the length of the longest frame in bytes, its framing included.
        most_body_bytes: a publish with a longer body is left to Python.
        publishes: take publishes at all.
        routing_keys: publishes to an exchange are for their routing key, too.
        contents: no rule limits deliveries.
        cuts: by peer, channel and rest of the body frame in hand, with the octet that ends it.
        deliveries: by channel, how much of the broker's open content is still to come.
        timed: the publish whose confirm is timed: its channel, the broker's number, and when it was forwarded.
        kept: by peer, the beginning of a frame, behind which the rest comes.

    Returns:
        What reads it. It returns by peer how often it was read, whether something was written to it, how much of its
        open contents is still to come, by channel, and ``cuts``; the channels of which the client's open content is
        refused; whether something was published; ``timed``; own answers that wait, by channel; and of channels with
        confirms the numbers.
    """

def lend_amqp10(
    judge: Judge,
    session: LentConnection,
    most_frame_bytes: tuple[int, int],
    timed: tuple[Conversation, int, int, bool] | None,
    unsettled: int,
    kept: tuple[bytes, bytes],
) -> Lent:
    """Return what reads an AMQP 1.0 connection.

    Of the links and sessions that ``session`` knows it takes, as long as they are encoded as the specification's tables
    say, descriptors are small ulongs, and frames have no extended header:

    - transfers that are a whole delivery, not aborted or resumed, and without a state, whose ids ascend by one; those
      of a link whose messages are decided if plain limits admit all of them;
    - dispositions;
    - flows without properties, of which ``session`` answers those that limits do not grant at once, or that drain.

    Empty frames are taken in any case. It leaves the rest to Python, and everything once other rules are in force.

    Args:
        judge: decides and counts.
        session: says what is to be known of links and sessions, and is told what came.
        most_frame_bytes: by peer, of the longest frame that is taken of it.
        timed: the session and id of the delivery whose settlement is awaited, since when, and whether it has come.
        unsettled: how many deliveries of the client have passed and are not settled.
        kept: by peer, what was read and is the beginning of a frame, at most 64 KiB.

    Returns:
        What reads it; it returns whether it has left with the first bytes that came.
    """

def lend_rocketmq(
    judge: Judge,
    requests: Requests,
    around: Callable[[Refuse], tuple[bytes, bytes]],
    max_length: int,
    most_polls: int,
    client: tuple[int, bool],
    broker: int,
    polls: Sequence[int],
    timed: tuple[int | None, int],
    kept: bytes,
    is_new: bool,
) -> Lent:
    """Return what reads a RocketMQ connection between two frames, or within one whose verdict is known.

    It takes plain frames, and all requests that nobody has to read; and the answers to both.
    It leaves the rest to Python, and any request that ``judge`` would have wait.

    Args:
        judge: decides and counts what the compiled part does not.
        requests: of the connection.
        around: returns the header of a refusal before and behind the number of the request.
        max_length: the highest length that a frame may name in its first word.
        most_polls: how many long polls may be remembered.
        client: bytes still to come of the client's frame in hand, and whether they are swallowed.
        broker: likewise of the broker's frame.
        polls: numbers of long polls that have no answer yet.
        timed: the number of the request whose answer is timed, and when that or the last one was forwarded.
        kept: the beginning of a frame of the client, behind which the rest of its header comes.
        is_new: ``judge.meet`` is to be called with the first header.

    Returns:
        What reads it; it returns ``client``, ``broker``, own answers that wait for the end of the broker's frame, polls
        with whether one of their numbers is ambiguous, and ``timed``.
    """

_Pieces: TypeAlias = tuple[list[bytes | tuple[int, int]], list[bytes | tuple[int, int]]]
"""What goes to the client and to the broker: bytes, or where they begin and end in the chunk in hand."""

_Returned: TypeAlias = tuple[Any, tuple[bytes, bytes], tuple[bytes, bytes], tuple[bytes, bytes], tuple[int, int]]
"""What a connection returns with: the state for its session; and by peer the beginning of a frame, which counts as
read, or bytes that are to be read again; those that were taken and not written; and the error that was met in reading,
or 0.
"""

@final
class Turn:
    """Serves all connections that were lent to it and have something ready, in one call.

    A connection leaves when something comes that its reading does not take, or when a stream ends or fails.

    Args:
        clock: returns monotonic nanoseconds.
        second_at: returns the second under way at a time, and when it ends.
        failed: called with the number of a connection and an error that is not its peers'; it must not call the turn.

    Attributes:
        system_calls: how many there were so far.
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
        """Return a descriptor that is readable when something may be ready."""
    def lend(
        self, client: int, broker: int, lent: Lent, ends_here: bool, unread: tuple[bytes, bytes], scope: int = 0
    ) -> int:
        """Serve two sockets from now on, which stay their owner's; return a number that no other connection has now.

        ``unread`` is what has come of either peer behind what its session has read. ``scope`` is a small number, by
        which ``take_signals`` sums.

        With ``ends_here`` the end of a client's stream between frames is passed on, and the connection is over with the
        end of the broker's; otherwise it leaves.

        Raises:
            OSError: the kernel cannot watch them.
        """
    def serve(
        self, budget_ns: int
    ) -> tuple[bool, list[tuple[int, int]], tuple[int, int], tuple[int, int], list[tuple[int, int]], list[int]]:
        """Serve until nothing is ready, or the time is over.

        Returns:
            Whether nothing is ready; what happened to connections, as their number and 0 for left, 1 for a broker that
            takes no more for now, 2 for one that does again, 3 for a client whose stream has ended, 4 for over, and 5
            for left since a stream has ended or a socket has failed; frames and bytes by the peer that they came from;
            how long decisions took, in nanoseconds, and of how many requests; and how long brokers took to answer.
        """
    def take_signals(self) -> list[tuple[int, int, list[int], int]]:
        """Return by scope what brokers have shown since the last call.

        Returns:
            How many sends, publishes and transfers they have answered, confirmed or settled. How many of these they
            refused as busy. How long some answers took, in nanoseconds, 1024 at most. And how many messages have no
            answer now, of connections that a turn has.
        """
    def take_counts(self, number: int) -> tuple[int, int, tuple[int, int], int]:
        """Return requests, refused ones, and bytes by peer since the last call, and when a peer was read last."""
    def take(self, number: int) -> _Returned:
        """Serve a connection no more; its number is free."""
    def forget(self, number: int) -> None:
        """Forget a connection whose sockets are closed; its number is free."""
    def __len__(self) -> int: ...

@final
class Channels:
    """The channels of one AMQP 0.9.1 connection while it is lent, and the keys of its publishes for good.

    A publish is *plain* if its method frame has no bit but mandatory, its header has 4096 bytes of properties at most,
    none of which looks like a table's key CC or BCC, and all parts of its name are printable ASCII. Contents of several
    channels may lie between each other.

    A publish to the exchange "" is for the queue that its routing key names, any other for its exchange, and where that
    is asked for also for ``EXCHANGE/KEY``. A ``/`` or ``%`` in a part is written as ``%2F`` or ``%25``. A key is an
    exchange and a routing key; when there are more than 1024, all are forgotten.

    Args:
        resources: where it is found what publishes are for.
        before_names: how all names begin.
    """

    def __new__(cls, resources: Resources, before_names: str) -> Self: ...
    def unconfirmed(self) -> int:
        """Return how many publishes went on and are not confirmed yet."""
    def names(self) -> list[Resource]:
        """Return the resources of the keys that are remembered, the first of each."""
