"""The Python side of an AMQP 1.0 connection that is on loan to the compiled extension.

The extension asks how many deliveries may arrive on each link before Python must act. It handles a flow itself if the
limits grant the flow's credit immediately. Other flows are handled here. The extension refers to the client as peer 0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource
from proxy.deciding.batch import Side
from proxy.deciding.judge import Judge
from proxy.protocols.amqp10.conversation import Conversation, translate_flow
from proxy.protocols.amqp10.credit import wrapped
from proxy.protocols.amqp10.links import Allowance, Flowed, Link, Shared
from proxy.protocols.base import Buffer

if TYPE_CHECKING:
    from sluice_native import Lent

_SIDES: Final = tuple(Side)
_MAX_RESOURCES: Final = 2

Fields = tuple[int, Sequence[int | None], bool]
"""A flow's channel, its first seven fields, and its drain flag."""
Difference = tuple[int | None, int | None, int]
"""The result of ``Renumbering.latest``."""
Flows = Sequence[Sequence[int | None] | None]
Ranges = Sequence[tuple[int, int]]
KnownLink = tuple[
    Link,
    Sequence[Resource],
    Allowance,
    tuple[int | None, bool],  # the maximum size of a message in bytes, and whether messages may list copies
    Callable[[int], bool] | None,  # the callback for decided messages, if all messages are decided
    tuple[int, int] | None,  # the receiver's channel and handle
    bool,  # whether only delaying rules grant the link's credit
]
Answered = tuple[
    int,  # number of granted requests for credit
    Sequence[tuple[int, tuple[int, int], Allowance]],  # each link's sender, channel and handle, and new allowance
    tuple[bytes, bytes],  # frames for each peer
    bool,  # whether the compiled extension may continue
]


class LentConnection:
    """Answers calls from the compiled extension.

    Calls ``send_flow`` to queue due flows, and ``take`` to get the bytes queued for a peer.
    """

    def __init__(
        self,
        shared: Shared,
        channels: Mapping[Side, Mapping[int, Conversation]],
        send_flow: Callable[[], None],
        take: Callable[[Side], Sequence[Buffer]],
    ) -> None:
        self._shared = shared
        self._channels = channels
        self._tell, self._take = send_flow, take
        self._judge: Judge | None = None
        self.heard: set[Side] = set()
        self.written: set[Side] = set()

    def lend(self, judge: Judge, max_frame_bytes: tuple[int, int], beginnings: tuple[bytes, bytes]) -> "Lent":
        assert COMPILED is not None  # noqa: S101 - required for lending
        self._judge = judge
        shared, timed = self._shared, None
        if shared.timed is not None:
            session, since_ns = shared.timed
            watched = session.halves[Side.CLIENT].ids.watched
            if watched is not None:
                timed = session, wrapped(watched), since_ns, False
        sessions = self._channels[Side.CLIENT].values()
        unsettled = sum(session.halves[Side.CLIENT].ids.unsettled for session in sessions)
        lent: Lent = COMPILED.lend_amqp10(judge, self, max_frame_bytes, timed, unsettled, beginnings)
        return lent

    def link(self, side: int, channel: int, handle: int) -> KnownLink | None:
        """Describe a link on which peer ``side`` sends. Return None if Python must read the link's transfers."""
        sender = _SIDES[side]
        session = self._channels[sender].get(channel)
        link = None if session is None else session.halves[sender].handles.get(handle)
        if session is None or link is None or link.sender is not sender or len(link.resources) > _MAX_RESOURCES:
            return None
        allowance = None if link.delivery is not None else link.allowance()
        if allowance is None:
            return None
        receiver = session.halves[sender.other].channel, link.handles[sender.other]
        known = None if receiver[0] is None or receiver[1] is None else (receiver[0], receiver[1])
        admitted = link.admitted if link.decides else None
        copies = link.max_bytes, link.copies
        return link, link.resources, allowance, copies, admitted, known, link.asks == "delaying"

    def session(
        self, side: int, channel: int
    ) -> tuple[Conversation, tuple[int, int], int | None, Sequence[Difference] | None] | None:
        """Describe a session. Return None if Python must read the session's frames.

        Returns:
            The session, its channels, the client's next delivery-id, and the difference between the peers' delivery-ids
            in each direction.
        """
        session = self._channels[_SIDES[side]].get(channel)
        if session is None or any(half.ended for half in session.halves.values()):
            return None
        client, broker = (session.halves[each] for each in _SIDES)
        if client.channel is None or broker.channel is None:
            return None
        counts_alike = all(half.ids.plain and not half.transfers.offset for half in (client, broker))
        differences = None if counts_alike else (client.ids.latest(), broker.ids.latest())
        return session, (client.channel, broker.channel), client.ids.next_id, differences

    def flows(
        self, side: int, flows: Sequence[Fields]
    ) -> tuple[Sequence[Sequence[tuple[int, bytes]]] | None, Answered]:
        """Handle flows from a peer and request permits for their credit. Called after ``take``.

        Returns:
            The fields to change in each flow, and the reply to the extension. If credit must wait, the fields are None,
            and the session reads the flows again.
        """
        peer, shared = _SIDES[side], self._shared
        said: list[tuple[Conversation, Link | None, Sequence[int | None], bool]] = []
        for channel, numbers, drains in flows:
            session, handle = self._channels[peer][channel], numbers[4]
            link = None if handle is None else session.halves[peer].handles.get(handle)
            if link is not None and link.sender is not peer:
                link.flow_of_receiver(numbers[5], numbers[6], drains)
            said.append((session, link, numbers, drains))
        if shared.due:
            shared.charge_due()
        granted = 0 if shared.charges else self._grant()
        if shared.needs_credit or shared.charges:
            shared.needs_flow.clear()
            shared.needs_credit.clear()
            return None, (granted, (), (b"", b""), False)
        changes = [
            list(translate_flow(session, peer, link, numbers, drains=drains).items())
            for session, link, numbers, drains in said
        ]
        return changes, self._answer([link for _, link, *_ in said if link is not None], granted)

    def note_received(self, links: Sequence[Link]) -> Answered:
        """Charge links for their deliveries, and request more credit for the links. Called after ``take``."""
        if self._shared.due:
            self._shared.charge_due()
        return self._answer(links, self._grant())

    def _grant(self) -> int:
        shared, judge, granted = self._shared, self._judge, 0
        assert judge is not None  # noqa: S101 - set by ``lend``
        for link in list(shared.needs_credit):
            request = link.ask()
            if request is not None and not judge.grant(shared.now_ns, request):
                link.request = None
                break
            del shared.needs_credit[link]
            if request is not None:
                granted += 1
                link.grant(request, request.most)
        return granted

    def _answer(self, links: Sequence[Link], granted: int) -> Answered:
        self._tell()
        allowed = []
        for link in links:
            channel, handle = link.session.halves[link.sender].channel, link.handles[link.sender]
            if channel is not None and handle is not None:
                allowed.append((_SIDES.index(link.sender), (channel, handle), link.allowance() or (0, 0, None)))
        client, broker = (b"".join(self._take(side)) for side in _SIDES)
        return granted, allowed, (client, broker), self._shared.is_quiet

    def take(  # noqa: PLR0917 - the compiled extension calls by position
        self,
        now_ns: int | None,
        heard: tuple[bool, bool],
        written: tuple[bool, bool],
        links: Sequence[tuple[Link, int, int | None, Flowed | None]],
        sessions: Sequence[tuple[Conversation, tuple[int, int], Flows, tuple[Ranges, Ranges], Ranges, int | None]],
        timed: tuple[Conversation, int, int, bool] | None,
    ) -> None:
        """Apply everything that the compiled extension has read since the last call.

        ``links`` contains the arguments of ``Link.passed`` in the order of the links' requests. For each session,
        ``sessions`` contains the number of transfers from each peer and each peer's last flow, and for deliveries from
        the client the ranges that the broker and the client have settled, the new unsettled ranges, and the last
        delivery-id. ``timed`` describes the timed delivery: its session and delivery-id, when it was sent, and whether
        it is settled.
        """
        self.heard |= {side for side, is_so in zip(_SIDES, heard, strict=True) if is_so}
        self.written |= {side for side, is_so in zip(_SIDES, written, strict=True) if is_so}
        if now_ns is not None:
            self._shared.now_ns = now_ns
        for link, deliveries, asks, flowed in links:
            link.passed(deliveries, asks=asks is not None, flowed=flowed)
        for session, transfers, flows, settled, unsettled, last in sessions:
            for side, count in zip(_SIDES, transfers, strict=True):
                session.halves[side].transfers.note_received(count)
            for side, numbers in zip(_SIDES, flows, strict=True):
                if numbers is not None:
                    translate_flow(session, side, None, (*numbers, None, None, None), drains=False)
            ids = session.halves[Side.CLIENT].ids
            answered, withdrawn = settled
            for each in answered:
                self._shared.context.signals.answers += ids.settled(*each)
            for each in withdrawn:
                ids.settled(*each)
            for first, last_of_range in unsettled:
                ids.note_received(first, wrapped(last_of_range - first + 1))
            if last is not None:
                ids.reached(last)
        shared = self._shared
        if shared.timed is not None:
            shared.timed[0].halves[Side.CLIENT].ids.watched = None
            shared.timed = None
        if timed is not None:
            session, number, since_ns, is_settled = timed
            ids = session.halves[Side.CLIENT].ids
            ids.watch(number)
            if is_settled:
                ids.watched, ids.answered = None, True
            shared.timed = session, since_ns
