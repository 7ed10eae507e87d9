"""Random schedules of RocketMQ connections, for ``both_ways``."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final, Literal, get_args

from both_ways import BROKER, CLIENT, Both, Way

from limiter.rules.errors import RuleError
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from playbook import frames
from playbook.captures import CAPTURES, Capture
from playbook.trial import random_pieces
from proxy.protocols.rocketmq.options import RocketMQOptions

TOPICS: Final = ("free", "few", "none", "slow", "seen", "fair", "bytes", "exempt", "warm", "orders", "%RETRY%back")
_OWN: Final = re.compile(rb'"opaque":-?[0-9]+}$|may not')
_GROUPS: Final = ("producers", "others", "")
_HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.1.2.3")
#: What rules a schedule has, and what is said at a time. Which of several requests for different things a limit admits
#: depends on how streams are cut into chunks. So either a chunk has one request; or limits are of one topic each, and a
#: topic has one producer group; or limits admit all or nothing, which also does not depend on when a chunk is read.
Flavour = Literal["one by one", "by topic", "all or nothing"]
#: Some rules of each kind, and from which flavour on they are left out; a schedule has some of them.
_RULES: Final[Mapping[Flavour, tuple[Callable[[], Rule], ...]]] = {
    "all or nothing": (
        lambda: Rule("topic", "none", 0),
        lambda: Rule("topic", "exempt", None, exempt=True),
        lambda: Rule("topic", "*", None),
        lambda: Rule("topic", "seen", 0, action="shadow"),
        lambda: Rule("client", "127.1.2.3", None, exempt=True),
        lambda: Rule("client", "127.0.0.2", 0),
        lambda: Rule("producer_group", "others", 0),
        lambda: Rule("retry_group", "*", 0),
        lambda: Rule("topic", "f*", 0, shared=True),
    ),
    "by topic": (
        lambda: Rule("topic", "*", 1000),
        lambda: Rule("topic", "few", 2),
        lambda: Rule("topic", "few", 20),
        lambda: Rule("topic", "slow", 4, action="delay"),
        lambda: Rule("topic", "slow", 4),
        lambda: Rule("topic", "seen", 1, action="shadow"),
        lambda: Rule("topic", "fair", 5, fair_by="client"),
        lambda: Rule("topic", "fair", 5, fair_by="producer_group"),
        lambda: Rule("topic", "bytes", None, bytes_per_s=2_000),
        lambda: Rule("topic", "bytes", 3, bytes_per_s=300),
        lambda: Rule("topic", "warm", 10, warm_up_s=5),
        lambda: Rule("retry_group", "*", 3),
    ),
    "one by one": (
        lambda: Rule("topic", "f*", 7, shared=True),
        lambda: Rule("topic", "*", 30, shared=True, action="shadow"),
        lambda: Rule("client", "127.0.0.0/8", 20),
        lambda: Rule("client", "127.0.0.2", 3, action="delay"),
        lambda: Rule("producer_group", "others", 3),
        lambda: Rule("listener", "main", 50),
        lambda: Rule("transaction", "*", 2),
        lambda: Rule("subscription", "*", 5),
        lambda: Rule("subscription", "*", 5, action="delay"),
    ),
}


def random_rules(random: Random, flavour: Flavour) -> list[Rule]:
    """Return some rules."""
    rules: dict[object, Rule] = {}
    few = random.random()
    for each, makes in _RULES.items():
        for make in makes:
            if random.random() < few:
                with suppress(RuleError):
                    rule = make()
                    rules[rule.key] = rule
        if each == flavour:
            break
    return list(rules.values())


class Talk:
    """What the peers of one connection say: bytes that are on their way, and what the broker has to answer."""

    def __init__(self, both: Both, random: Random, flavour: Flavour, link: int) -> None:
        self.both, self.random, self.flavour, self.link = both, random, flavour, link
        self.opaque = random.choice((0, 1, -5, 2**31 - 40))
        self.unsaid = {CLIENT: b"", BROKER: b""}
        self.asked: list[int] = []
        #: Numbers of requests that have no answer yet.
        self.reuses = False
        self._ids = 0
        self._heard = bytearray()
        self._garbled = False

    def number(self) -> int:
        random = self.random
        if self.reuses and random.random() < 0.05:
            return random.choice((0, self.opaque, random.randint(-(2**31), 2**31 - 1)))
        self.opaque = self.opaque + 1 if self.opaque < 2**31 - 1 else -(2**31)
        return self.opaque

    def group(self, topic: str) -> str:
        """Return who sends to a topic."""
        if self.flavour == "by topic":
            return "" if topic.startswith("%") else _GROUPS[TOPICS.index(topic) % len(_GROUPS)]
        return self.random.choice(_GROUPS)

    def plain(self) -> bytes:
        random = self.random
        topic, number = random.choice(TOPICS), self.number()
        flag = frames.ONEWAY if random.random() < 0.1 else 0
        ids = {}
        if random.random() < 0.6:
            # Some are sent again, but not within a chunk: what counts as repeated then depends on how it is cut.
            self._ids = (self._ids + 1) % (20 * len(TOPICS))
            topic, ids = TOPICS[self._ids % len(TOPICS)], {"UNIQ_KEY": f"{self._ids:032X}"}
        return frames.send(
            *(topic, number),
            body=bytes(random.choice((0, 5, 100, random.randint(0, 3000)))),
            flag=flag,
            group=self.group(topic),
            binary=random.random() < 0.2,
            code=random.choice((310, 310, 310, 320, 325)),
            properties=ids,
        )

    def unlimited(self) -> bytes:
        """Return a frame of the client that nothing limits, unless subscriptions are limited."""
        random = self.random
        number, topic = self.number(), random.choice(TOPICS)
        flag = frames.ONEWAY if random.random() < 0.2 else 0
        others: tuple[Callable[[], bytes], ...] = (
            lambda: frames.pull(number, topic=topic, code=random.choice((11, 361, 200_050, 200_054, 200_070))),
            lambda: frames.pull(number, binary=True),
            lambda: frames.heartbeat(number, body=b'{"clientID":"c%d"}' % random.randrange(3)),
            lambda: frames.heartbeat(number, binary=True),
            lambda: frames.json_frame(35, {"clientID": "c1", "producerGroup": "g"}, opaque=number),
            lambda: frames.json_frame(
                105, {"topic": topic}, opaque=number, flag=flag, body=bytes(random.randrange(300))
            ),
            lambda: frames.json_frame(15, {"topic": topic, "offset": "1"}, opaque=number, flag=flag),
            lambda: frames.json_frame(0, {}, opaque=number, flag=frames.RESPONSE, body=bytes(random.randrange(300))),
        )
        return random.choice(others)()

    def special(self) -> bytes:
        """Return a frame that Python looks at."""
        random = self.random
        number, topic = self.number(), random.choice(TOPICS)
        flag = frames.ONEWAY if random.random() < 0.2 else 0
        body, group = bytes(random.randint(0, 300)), self.group(topic)
        others: tuple[Callable[[], bytes], ...] = (
            lambda: frames.send_batch(topic, random.randint(1, 5), number, flag=flag, group=group),
            lambda: frames.send(topic, number, batch=True, body=body, group=group),
            lambda: frames.send_half(topic, number, group=group),
            lambda: frames.send_half(topic, number, group=group, UNIQ_KEY=str(number)),
            lambda: frames.send_back("back", number, flag=flag),
            lambda: frames.send("RMQ_SYS_TRACE_TOPIC", number),
            lambda: frames.send(topic, number, sys_flag="128", group=group),
            lambda: frames.send(topic, number, sys_flag=random.choice((0, "1", 257)), group=group),
            lambda: frames.send(topic, number, filler=random.choice((10, 3000, 70_000)), group=group),
            lambda: frames.json_frame(310, {"b": topic, "a": group, "x": None}, opaque=number),
            # Read leniently.
            lambda: frames.frame(
                b'{"code":"310", "opaque":%d,"extFields":{"a":"%s","b":"%s"}}'
                % (number, group.encode(), topic.encode())
            ),
        )
        if self.flavour == "one by one" and random.random() < 0.3:
            # Their own answers come before others of their chunk.
            if random.random() < 0.3:
                return random.choice((frames.view_limits(number, flag=flag), frames.update_limit(topic, "5", number)))
            return frames.end_transaction(random.randrange(5), number, flag=flag, what=random.choice((0, 8, 12)))
        return random.choice(others)()

    def answer(self) -> bytes:
        """Return a frame of the broker."""
        random = self.random
        if self.asked and random.random() < 0.9:
            number = self.asked.pop(random.choice((0, random.randrange(len(self.asked)))))
            kind = random.random()
            if kind < 0.7:
                return frames.answer(number, body=bytes(random.choice((0, 10, 2000))), filler=random.randint(0, 50))
            if kind < 0.8:
                return frames.answer(number, 2)
            if kind < 0.9:
                return frames.binary_frame(0, opaque=number, flag=frames.RESPONSE, body=b"x" * random.randint(0, 50))
            return (
                frames.stored(number, random.randrange(5))
                if kind < 0.95
                else frames.answer(
                    number, body=frames.records(*[random.randint(91, 200) for _ in range(random.randint(1, 4))])
                )
            )
        number = self.number()
        return random.choice(
            (
                frames.check_transaction(random.randrange(5), number, topic=random.choice(TOPICS)),
                frames.broker_request(number),
                frames.answer(number),
                frames.json_frame(0, opaque=number, flag=frames.RESPONSE, remark="x" * 20),
                frames.unparsable(number),
            )
        )

    def garbage(self) -> bytes:
        random = self.random
        return random.choice(
            (
                frames.unparsable(self.number()),
                random.randbytes(random.randint(1, 40)),
                b"\0\0\0\x20\0\0\1\0" + bytes(40),
                b"\x7f\xff\xff\xff" + bytes(20),
                frames.frame(b'{"code":310', b""),
            )
        )

    def hear(self) -> None:
        """Note what the broker has to answer."""
        self._heard += self.both.take(self.link, BROKER)
        at = 0
        while not self._garbled and len(self._heard) - at >= 8:
            length = int.from_bytes(self._heard[at : at + 4], signed=True)
            if not 4 <= length < 1 << 24:
                self._garbled = True
                break
            if len(self._heard) - at < 4 + length:
                break
            whole = bytes(self._heard[at : at + 4 + length])
            at += 4 + length
            with suppress(ValueError, KeyError, AssertionError):
                if whole[4]:
                    self.asked.append(int.from_bytes(whole[13:17], signed=True))
                    continue
                header = frames.read_header(whole)
                if not int(str(header.get("flag", 0))) & 3:
                    self.asked.append(int(str(header["opaque"])))
        del self._heard[:at]

    def piece(self, side: Any) -> bytes:
        """Take a piece of what a peer has to say, of any length."""
        said, random = self.unsaid[side], self.random
        if random.random() < 0.5:
            size = len(said)
        else:
            size = random.choice((1, 4, 8, random.randint(0, 200), random.randint(0, len(said))))
        self.unsaid[side] = said[size:]
        return said[:size]

    def compose(self, side: Any) -> None:
        random = self.random
        if side is CLIENT:
            makes = [self.plain, self.unlimited, random.choice((self.plain, self.unlimited, self.special))]
            if self.flavour == "all or nothing":
                makes.append(self.special)
            elif self.flavour == "one by one" or random.random() < 0.3:
                if not self.unsaid[side]:
                    self.unsaid[side] = random.choice((self.plain, self.unlimited, self.special))()
                return
            else:
                makes[2] = self.plain
            for _ in range(random.choice((0, 1, 1, 2, 3, 8, 30))):
                self.unsaid[side] += random.choice(makes)()
            if random.random() < 0.01:
                self.unsaid[side] += self.garbage()
        else:
            self.hear()
            for _ in range(random.choice((0, 1, 2, len(self.asked)))):
                self.unsaid[side] += self.answer()
            if random.random() < 0.005:
                self.unsaid[side] += self.garbage()


async def talk(both: Both, random: Random) -> None:
    """Some connections, about which everything may happen."""
    flavour = random.choice(get_args(Flavour))
    reuses = random.random() < 0.3
    # Of two requests with one number it depends on how streams are cut into chunks which of them is known, and Python
    # by itself also takes some numbers for settled that are not.
    both.knows_in_flight = not reuses and _scans(both)
    await both.apply(random_rules(random, flavour))
    talks = [await _begin(both, random, flavour, reuses=reuses) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    for _ in range(random.randint(5, 40)):
        each = random.choice(talks)
        side = random.choice((CLIENT, CLIENT, BROKER))
        kind = random.random()
        if kind < 0.75:
            each.compose(side)
            data = each.piece(side)
            if data:
                await both.say(each.link, side, data)
        elif kind < 0.8 and len(talks) > 1 and flavour == "all or nothing":
            said = []
            for one in random.sample(talks, 2):
                one.compose(CLIENT)
                said.append((one.link, CLIENT, one.piece(CLIENT)))
            await both.say_together(*(one for one in said if one[2]))
        elif kind < 0.87:
            if not both.stalled:
                await both.jump(random.choice((0.001, 0.01, 0.011, 0.3, 1.0, 5.0)))
        elif kind < 0.88:
            await both.look()
        elif kind < 0.89 and not both.stalled:
            await both.recall()
        elif kind < 0.91:
            await both.apply(random_rules(random, flavour))
        elif kind < 0.93:
            talks.append(await _begin(both, random, flavour, reuses=reuses))
        elif kind < 0.95 and flavour == "all or nothing":
            await (both.resume if side in both.ways[0].links[each.link].paused else both.pause)(each.link, side)
        else:
            await _disturb(both, random, each, side)
    for each in talks:
        for side in (CLIENT, BROKER):
            if each.unsaid[side] and both.is_open(each.link, side):
                await both.say(each.link, side, each.unsaid[side])


async def _begin(both: Both, random: Random, flavour: Flavour, *, reuses: bool) -> Talk:
    each = Talk(both, random, flavour, await both.open(random.choice(_HOSTS)))
    each.reuses = reuses
    if random.random() < 0.85:
        # So many headers are read one by one at first.
        first = b"".join(frames.heartbeat(each.number()) for _ in range(16))
        await both.say(each.link, CLIENT, first)
        if random.random() < 0.5:
            each.hear()
            await both.say(each.link, BROKER, b"".join(map(frames.answer, each.asked)))
            each.asked.clear()
    return each


async def _disturb(both: Both, random: Random, each: Talk, side: Any) -> None:
    last = each.piece(side) if random.random() < 0.5 else b""
    number = random.randrange(10)
    if number < 2:
        await both.end(each.link, side, data=last)
    elif number < 4:
        await both.reset(each.link, side, data=last)
    elif number == 4:
        await both.do("alarm", lambda way: _alarm(way, "short of memory"))
        each.compose(CLIENT)
        await both.say(each.link, CLIENT, each.piece(CLIENT) or frames.heartbeat(each.number()))
        await both.do("no alarm", lambda way: _alarm(way, ""))
    elif number == 5:
        await both.do("purge", lambda way: [each.purge(Resource("topic", "slow")) for each in way.connections])
    elif number == 6:
        await both.ask("reset", lambda path: path.reset("topic", random.choice(("few",))))
    elif number == 7:
        await both.ask("kill", lambda path: path.close_connection(each.link + 1, "why"))
    elif number == 8 and not both.stalled:
        await both.jump(random.choice((61.0, 31.0)))
    elif number == 9 and random.random() < 0.3 and not both.stalled:
        for way in both.ways:
            both.nursery.start_soon(way.path.drain, 2.0)
        await both.settle()
        each.compose(CLIENT)
        await both.say(each.link, CLIENT, each.piece(CLIENT) or b"\0")
        for _ in range(4):
            each.compose(BROKER)
            await both.say(each.link, BROKER, each.piece(BROKER) or each.answer())
            await both.jump(0.6)


def _scans(both: Both) -> bool:
    """Say whether the way without the turn reads by the compiled part, too."""
    return bool(both.ways[1].path.server.listeners[0].options.scan != "python")


def _alarm(way: Way, reason: str) -> None:
    way.path.server.alarm = reason
    for _ in way.path._stop_publishers(reason):
        pass


def played(capture: Capture, longest: int) -> Any:
    """Return a schedule that plays a recorded connection."""

    async def play(both: Both, random: Random) -> None:
        link = await both.open()
        left: dict[Any, Iterator[bytes]] = {
            CLIENT: random_pieces(capture.to_broker, random, longest),
            BROKER: random_pieces(capture.to_client, random, longest),
        }
        while left:
            side = random.choice(list(left))
            piece = next(left[side], None)
            if piece is None:
                del left[side]
                await both.end(link, side)
            else:
                await both.say(link, side, piece)

    return play


def same(side: Any, got: bytes, wanted: bytes) -> bool:
    """Say whether a client has received the same, but for the order of own answers.

    Those of one chunk may come in any order. The turn forwards the beginning of a broker's header when the rest has
    come, so that own answers need not wait for the end of the frame.
    """
    if side is BROKER:
        return False
    (theirs, own, _), (theirs_wanted, own_wanted, in_gap) = map(_apart, (got, wanted))
    if not theirs_wanted.startswith(theirs) or len(theirs_wanted) - len(theirs) > 64 * 1024:
        return False
    return own == own_wanted if in_gap else not own_wanted - own


def _apart(data: bytes) -> tuple[bytes, Counter[bytes], bool]:
    """Return the broker's bytes, own answers, and whether the last frame of the broker is whole."""
    theirs, own = bytearray(), Counter[bytes]()
    at = 0
    while len(data) - at >= 8:
        stop = at + 4 + int.from_bytes(data[at : at + 4])
        whole = data[at:stop]
        if _OWN.search(whole):
            own[whole] += 1
        else:
            theirs += whole
        at = stop
    return bytes(theirs + data[at:]), own, at == len(data)


def settings(random: Random) -> dict[str, Any]:
    """Return what ``both_ways.run`` is to be given for a schedule."""
    others: dict[str, Any] = {"internal_topics": random.choice(("refuse", "pass"))} if random.random() < 0.3 else {}
    return {
        "options": (RocketMQOptions(**others), RocketMQOptions(**others, scan=random.choice(("python", "auto")))),
        "same": same,
        "budget_ns": random.choice((None, None, 1)),
        "small": random.random() < 0.3,
    }


__all__ = ["CAPTURES", "played", "random_rules", "settings", "talk"]
