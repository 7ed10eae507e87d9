"""The compiled reader of a RocketMQ connection, fed with chunks, with a stand-in or the limits as its judge."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from limiter.counting.repeats import RefusedIds
from limiter.counting.row import Second
from limiter.counting.seconds import Sender
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from playbook import frames
from proxy.protocols.rocketmq.refusals import is_internal
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, HEARD, MAX_FRAME_BYTES, SYS_FLAGS_SPECIAL
from proxy.protocols.rocketmq.wire.header import STRICT, Header

try:
    import sluice_native
except ImportError as error:
    raise ImportError("the compiled extension is not installed: make native") from error

MAX_OWED: Final = 1000
MAX_KEYS: Final = 100
CLIENT, BROKER = 0, 1
# They admit nothing, so that each send reaches the judge.
ASKS: Final = RuleSet([Rule(kind, "*", 0) for kind in ("topic", "retry_group")])


class Run(NamedTuple):
    """A question to the judge."""

    kind: str
    name: str
    producer_group: str
    sizes: list[int]


class Recorder:
    """Stands for ``proxy.deciding.judge.Judge``, and records questions.

    ``limits``: asked first. ``decide``: returns which requests of a run pass (True) or are refused. None refuses all.
    ``refuse``: returns the refusal. ``ids``: recently refused ones. ``runs``: the questions. ``counted``: per count,
    requests with an answer, requests, and repeats.
    """

    sender: Sender | None = None
    passed = bypassed = 0
    is_exempt = False

    def __init__(
        self,
        limits: Limits,
        decide: Callable[[Run], list[tuple[int, bool]]] | None = None,
        refuse: Callable[[Resource], object] = lambda _: "refused",
        ids: RefusedIds | None = None,
    ) -> None:
        assert limits.resources is not None
        self.resources = limits.resources
        self.ids = self.all_ids = ids
        self.stays: Callable[[], bool] = bool
        self.callers: Any = None
        self.runs: list[Run] = []
        self.counted: list[tuple[int, int, Any]] = []
        self._decide, self._refuse = decide, refuse

    def refresh(self) -> tuple[bool, bool, bool, Any]:
        """The connection may stay, all rules refuse, and some limit bytes."""
        return True, True, True, self.callers

    def decide(
        self, _now_ns: int, resources: tuple[Resource, ...], group: str, count: int, sizes: list[int]
    ) -> list[tuple[int, object]]:
        ((kind, name),) = resources
        run = Run(kind, name, group, sizes)
        assert len(sizes) == count
        self.runs.append(run)
        spans = [(count, False)] if self._decide is None else self._decide(run)
        return [(some, None if passes else self._refuse(resources[0])) for some, passes in spans]

    def count(
        self,
        _now_ns: int,
        _resources: tuple[Resource, ...],
        _group: str,
        refuse: object,
        _is_bypassed: bool,  # noqa: FBT001 - as it is called
        amount: tuple[int, int, int],
        answers: int,
        repeats: object,
    ) -> None:
        del refuse
        self.counted.append((answers, amount[0], repeats))

    def failed(self, error: Exception, _requests: int) -> None:
        """No failure is expected."""
        raise error


class Read(NamedTuple):
    """The result of a chunk."""

    to_client: bytes
    to_broker: bytes
    stop: int
    leaves: bool
    frames: tuple[int, int]


class Passed(NamedTuple):
    """An unlimited frame, and the opaques without an answer."""

    owed: sluice_native.Requests
    polls: Sequence[int]

    def agrees_with(self, header: Header) -> bool:
        """Say whether Python's reader forwards it as well."""
        is_answer = header.flag & FLAG_RESPONSE
        expected = set() if is_answer or header.flag & FLAG_ONEWAY else {header.opaque}
        is_heard = header.code in HEARD and not is_answer
        owes = len(self.polls) + len(self.owed) == len(expected)
        found = {number for number in expected if number in self.owed or number in self.polls}
        return not header.kind and header.reading == STRICT and not is_heard and owes and found == expected


class Reading(NamedTuple):
    """The relevant parts of a plain send, or send-back."""

    kind: str
    name: str
    producer_group: str
    opaque: int | None
    """None if no answer is expected."""

    def agrees_with(self, header: Header) -> bool:
        """Say whether Python reads it in the same way, without ambiguity."""
        opaque = None if header.flag & FLAG_ONEWAY else header.opaque
        same = (header.kind, header.name, header.producer_group, opaque)
        plain = not header.is_batch and not header.sys_flag & SYS_FLAGS_SPECIAL and not is_internal(header.name)
        return self == same and header.reading == STRICT and plain


class Extension:
    """The compiled extension, with the requests of one connection."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits(ASKS)
        self.owed = self.requests()

    def requests(
        self, numbers: Iterable[int] = (), *, max_keys: int = MAX_KEYS, most: int = MAX_OWED
    ) -> sluice_native.Requests:
        """Make the request state of another connection, with some requests without an answer."""
        assert self.limits.resources is not None
        requests = sluice_native.Requests(self.limits.resources, max_keys, most)
        for number in numbers:
            requests.add(number, True)
        return requests

    def recorder(self, decide: Callable[[Run], list[tuple[int, bool]]] | None = None) -> Recorder:
        """Make a judge that sees all sends."""
        return Recorder(self.limits, decide)

    def lend(
        self,
        judge: Any,
        requests: "sluice_native.Requests | None" = None,
        *,
        around: Callable[[Any], tuple[bytes, bytes]] = lambda _: (b"", b""),
        max_length: int = MAX_FRAME_BYTES - 4,
    ) -> sluice_native.Lent:
        """Return the reader of a new connection, with ``owed`` unless another is given."""
        if requests is None:
            requests = self.owed
        state: tuple[Any, ...] = ((0, False), 0, [], (None, 0), b"", False)
        return sluice_native.lend_rocketmq(judge, requests, around, max_length, 1000, *state)

    def read_header(self, header: bytes, header_type: int) -> Reading | Passed | None:
        """Read one header. None: it is left to Python."""
        return self.read_frame(frames.frame(header, header_type=header_type))

    def read_frame(self, whole: bytes) -> Reading | Passed | None:
        judge, owed = self.recorder(), self.requests()
        lent = self.lend(judge, owed)
        read = feed(lent, CLIENT, whole)
        if read.leaves:
            assert read == (b"", b"", 0, True, (0, 0))
            assert (judge.runs, len(owed)) == ([], 0)
            return None
        assert (read.stop, read.frames) == (len(whole), (1, 0))
        if judge.runs:
            ((*key, sizes),) = judge.runs
            ((answers, requests, _),) = judge.counted
            assert (sizes, requests, read.to_broker, len(owed)) == ([len(whole)], 1, b"", 0)
            answered = [int(each[8:]) for each in frames.split(read.to_client)]
            assert len(answered) == answers
            kind, name, group = key
            return Reading(kind, name, group, answered[0] if answered else None)
        assert (read.to_broker, read.to_client) == (whole, b"")
        _, _, _, (polls, _), _ = lent.give_back()
        return Passed(owed, polls)


def feed(
    lent: sluice_native.Lent, side: int, chunk: bytes | bytearray | memoryview, now_ns: int = 0, second: Any = None
) -> Read:
    second = Second(0) if second is None else second
    pieces, stop, leaves, of_peers, _, _, _ = lent.feed(side, chunk, now_ns, lambda: now_ns, second)
    to_client, to_broker = (
        b"".join(piece if isinstance(piece, bytes) else bytes(chunk[slice(*piece)]) for piece in of_peer)
        for of_peer in pieces
    )
    return Read(to_client, to_broker, stop, leaves, (of_peers[0], of_peers[1]))
