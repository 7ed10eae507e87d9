"""A publisher's side of confirms by consumers: which of its publishes wait for them, and what it is told in the end.

Such a publish goes on as transient, with a mark that is taken out again when it is delivered. What the broker says of
it is withheld from the client, but for a nack.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from limiter.plans.plans import Confirming
from limiter.rules.resource import Resource
from proxy.deciding.batch import ConnectionInfo
from proxy.protocols.amqp.names import MAX_NAMES, Target
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.after_consume import AfterConsume, Destination, Inbox, Waiting
from proxy.protocols.amqp091.channel import Channel
from proxy.protocols.amqp091.wire import Malformed
from proxy.protocols.base import SessionContext

#: Who has so many publishes unanswered on one channel does not wait for the disk each time: the broker writes many at
#: once then, and confirms by consumers gain little for what they cost. Its publishes go on as they come.
MAX_UNCONFIRMED: Final = 16
#: For so long after that, too; and publishes of a channel are left alone so long where nothing is to wait.
_AHEAD_NS: Final = 1_000_000_000
#: How many are answered, or published again, at once: some milliseconds.
MAX_ANSWERED: Final = 512


class Marking:
    """The publishes of one connection that wait for consumers, or may be to.

    Args:
        context: of the session.
        who: returns whose requests they are.
        hub: of all sessions of the broker.

    Attributes:
        active: some rule may want it.
        take_all: has the compiled part read all publishes of a channel, or no more those that may wait.
    """

    def __init__(self, context: SessionContext, who: Callable[[], ConnectionInfo], hub: AfterConsume) -> None:
        self.active = False
        self.take_all: Callable[[Channel, bool], None] = lambda *_: None
        self._context = context
        self._who = who
        self._hub = hub
        self._inbox = Inbox(context.wake)
        #: What the rules of that version say, by what a publish is charged to.
        self._rules: dict[tuple[Resource, ...], Confirming | None] = {}
        self._version = -1
        #: Channels of clients that do not wait for a confirm before they publish on.
        self._ahead: dict[Channel, None] = {}
        #: By channel the publish that shows how long the broker takes: its number, when it went on, and where.
        self._samples: dict[Channel, tuple[int, int, Destination]] = {}
        #: Nothing new is to wait, and what does falls back.
        self._ends = False

    def part(self) -> None:
        """Forget who it is for."""
        self._ahead.clear()
        self._samples.clear()
        del self._who, self._context, self.take_all

    # --- What is published ------------------------------------------------------------------------

    def look(self) -> bool:
        """Look whether the rules have changed; say whether that may make a difference."""
        context = self._context
        version, before = context.rules_version(), self.active
        self.active = context.after_consume()
        if version == self._version and self.active is before:
            return False
        self._version = version
        self._rules.clear()
        return before or self.active

    def _rule(self, target: Target) -> Confirming | None:
        resources = target.resources
        if resources not in self._rules:
            if len(self._rules) >= MAX_NAMES:
                self._rules.clear()
            self._rules[resources] = self._context.terms(self._who(), resources[:1], False).confirm
        return self._rules[resources]

    def concerns(self, target: Target) -> bool:
        """Say whether some rule is for what is published to a target."""
        return self._rule(target) is not None

    def may_wait(self, channel: Channel, target: Target, now_ns: int) -> bool:
        """Say of a publish that begins to come whether it may be one that waits."""
        if not self._can_wait(channel, target) or self._runs_ahead(channel, now_ns):
            return False
        until_ns = self._destination(target).paused_until_ns()
        if now_ns < until_ns:
            self._leave_alone(channel, min(until_ns, now_ns + _AHEAD_NS))
            return False
        return True

    def _can_wait(self, channel: Channel, target: Target) -> bool:
        if channel.confirms is None or channel.transacts or channel.closes or self._ends:
            return False
        rule = self._rule(target)
        return rule is not None and _queues(target, rule) > 0

    def _runs_ahead(self, channel: Channel, now_ns: int) -> bool:
        """Say of a channel whether its client does not wait for single confirms, now or a moment ago."""
        confirms = channel.confirms
        if confirms is not None and confirms.outstanding() + len(channel.waiting) >= MAX_UNCONFIRMED:
            self._leave_alone(channel, now_ns + _AHEAD_NS)
        return now_ns < channel.runs_ahead_until_ns

    def _leave_alone(self, channel: Channel, until_ns: int) -> None:
        """Have the publishes of a channel go as they come for a while."""
        channel.runs_ahead_until_ns = until_ns
        if channel not in self._ahead:
            self._ahead[channel] = None
            self.take_all(channel, True)

    def _destination(self, target: Target) -> Destination:
        return self._hub.destination(target.resources[0], is_queue=not target.exchange)

    def look_at_channels(self, now_ns: int) -> None:
        """See who waits for single confirms again, or may do so."""
        for channel in [each for each in self._ahead if not self._runs_ahead(each, now_ns)]:
            del self._ahead[channel]
            self.take_all(channel, False)

    def passed(self, target: Target, count: int) -> None:
        """Count publishes with confirms that the compiled part has read, and that have gone on."""
        if self._rule(target) is not None:
            self._destination(target).broker_total += count

    def is_small(self, target: Target, body_bytes: int) -> bool:
        """Say whether a publish with such a body is one of those that may wait."""
        rule = self._rule(target)
        return rule is not None and body_bytes < rule.below_bytes

    def mark(  # noqa: PLR0917 - two numbers of different things
        self, channel: Channel, target: Target, sequence: int, frames: bytes, most_payload_bytes: int, now_ns: int
    ) -> bytes:
        """Take a publish with confirms that goes on to the broker.

        Args:
            channel: where.
            target: to what.
            sequence: the client's number of it.
            frames: all of it; empty if it cannot wait.
            most_payload_bytes: of one frame.
            now_ns: on the monotonic clock.

        Returns:
            What is to go instead if it is to wait, and empty otherwise.
        """
        if self._context.rules_version() != self._version:
            self._rules.clear()
        confirms, rule = channel.confirms, self._rule(target)
        assert confirms is not None  # noqa: S101 - as it has confirms
        confirms.sent(sequence)
        if rule is None:
            return b""
        hub = self._hub
        destination = self._destination(target)
        number = hub.takes(destination, now_ns) if frames and self._can_wait(channel, target) else 0
        if number and channel not in self._samples and destination.begins_sample(now_ns):
            self._samples[channel] = confirms.latest(), now_ns, destination
            number = 0
        marked = _marked(frames, hub.maker, number, most_payload_bytes) if number else b""
        if not marked:
            destination.broker_total += 1
            return b""
        queues = _queues(target, rule)
        message = Waiting(number, destination, self._inbox, channel, sequence, frames, now_ns, rule, queues)
        message.tag = confirms.withhold()
        channel.waiting[sequence] = message
        hub.begin(message)
        return marked

    # --- What the broker says ---------------------------------------------------------------------

    def heard(self, now_ns: int) -> None:
        """Look for answers to the samples, as the broker has said something."""
        if not self._samples:
            return
        for channel, (tag, since_ns, destination) in list(self._samples.items()):
            assert channel.confirms is not None  # noqa: S101 - as it has confirms
            if not channel.confirms.is_open(tag):
                del self._samples[channel]
                destination.sampled(now_ns - since_ns, now_ns)

    def nacked(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Note that the client hears that the broker has refused some publishes."""
        for sequence in sequences:
            message = channel.waiting.pop(sequence, None)
            if message is not None:
                self._hub.forget(message)

    def returned(self, channel: Channel, mark: wire.Mark) -> None:
        """Note that the broker could route a publish nowhere, and leave its confirm to the broker."""
        message = self._hub.find(mark.maker, mark.number)
        if message is not None and message.channel is channel:
            del channel.waiting[message.sequence]
            self._hub.forget(message)
            assert channel.confirms is not None  # noqa: S101 - as it has confirms
            channel.confirms.release(message.tag)

    # --- What becomes of it -----------------------------------------------------------------------

    def due_ns(self) -> int | None:
        """Return when ``answer`` is to be called, if nobody wakes the session before."""
        return self._inbox.due_ns()

    def answer(self, now_ns: int) -> tuple[dict[Channel, list[bytes]], list[Waiting]]:
        """Be done with what waits no more, or for too long; if that is much the rest comes with the next call, soon.

        Returns:
            The answers for the client, by channel; and what is to be published again.
        """
        inbox = self._inbox
        late = inbox.all() if self._ends else inbox.due(now_ns)
        for message in list(islice(late, MAX_ANSWERED)):
            self._hub.fall_back(message, "parted" if self._ends else "late", now_ns)
        answers: dict[Channel, list[bytes]] = {}
        again: list[Waiting] = []
        for _ in range(min(len(inbox.ended), MAX_ANSWERED)):
            message, outcome = inbox.ended.popleft()
            channel, sequence = message.channel, message.sequence
            if channel.waiting.pop(sequence, None) is None:
                # The broker has refused it meanwhile, or the channel is closed.
                continue
            assert channel.confirms is not None  # noqa: S101 - as it has confirms
            channel.confirms.settle(message.tag)
            if outcome != "consumed" and message.persists:
                again.append(message)
                continue
            make = wire.ack if outcome == "consumed" else wire.nack
            answers.setdefault(channel, []).append(make(channel.number, sequence))
        if inbox.ended:
            self._context.wake()
        return answers, again

    def end(self) -> None:
        """Have all that waits fall back soon, and nothing wait any more: the connection is about to end."""
        if not self._ends:
            self._ends = True
            self._context.wake()

    def forget_all(self) -> None:
        """Forget all that waits: nothing was promised to a client that goes, or has gone."""
        self._ends = True
        for message in list(self._inbox.all()):
            message.channel.waiting.pop(message.sequence, None)
            self._hub.forget(message)
        for message, _ in self._inbox.ended:
            message.channel.waiting.pop(message.sequence, None)
        self._inbox.ended.clear()

    def forget(self, channel: Channel) -> None:
        """Forget what waits in a channel that is closed: nothing was promised."""
        for message in channel.waiting.values():
            self._hub.forget(message)
        channel.waiting.clear()
        self._ahead.pop(channel, None)
        self._samples.pop(channel, None)


def _queues(target: Target, rule: Confirming) -> int:
    """Return to how many queues a publish goes; 0 if that is not known."""
    return rule.queues or 0 if target.exchange else 1


def _marked(frames: bytes, maker: int, number: int, most_payload_bytes: int) -> bytes:
    """Return the frames of a marked publish; empty if it cannot be marked."""
    try:
        start, stop = wire.content_header_at(frames)
        header = wire.mark_header(frames[start:stop], maker, number)
    except Malformed:
        return b""
    if header is None or len(header) > most_payload_bytes:
        return b""
    return wire.with_header(frames, start, stop, header)
