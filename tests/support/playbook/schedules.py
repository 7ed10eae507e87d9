"""Random schedules of RocketMQ connections, for ``both_ways``."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

from both_ways import BROKER, CLIENT, Both

from limiter.rules.rule import Rule
from playbook import frames, talks
from playbook.captures import Capture
from playbook.talks import NAMES, Flavour, Talk, play, rules_of
from playbook.trial import random_pieces
from proxy.protocols.rocketmq.options import RocketMQOptions

TOPICS: Final = (*NAMES, "%RETRY%back")
_OWN: Final = re.compile(rb'"opaque":-?[0-9]+}$|may not')
_GROUPS: Final = ("producers", "others", "")
_RULES: Final = rules_of(
    "topic",
    {
        "all or nothing": (
            lambda: Rule("producer_group", "others", 0),
            lambda: Rule("retry_group", "*", 0),
        ),
        "by name": (
            lambda: Rule("topic", "fair", 5, fair_by="producer_group"),
            lambda: Rule("retry_group", "*", 3),
        ),
        "one by one": (
            lambda: Rule("producer_group", "others", 3),
            lambda: Rule("transaction", "*", 2),
            lambda: Rule("subscription", "*", 5),
            lambda: Rule("subscription", "*", 5, action="delay"),
        ),
    },
)


class RocketMQTalk(Talk):
    """``asked``: the numbers of requests without an answer. ``reuses``: reuse them."""

    KIND = "topic"

    def __init__(self, both: Both, random: Random, flavour: Flavour, link: int, *, reuses: bool) -> None:
        super().__init__(both, random, flavour, link)
        self.opaque = random.choice((0, 1, -5, 2**31 - 40))
        self.asked: list[int] = []
        self.reuses = reuses
        self._ids = 0
        self._halves = count()
        self._heard = bytearray()
        self._garbled = False

    def number(self) -> int:
        random = self.random
        if self.reuses and random.random() < 0.05:
            return random.choice((0, self.opaque, random.randint(-(2**31), 2**31 - 1)))
        self.opaque = self.opaque + 1 if self.opaque < 2**31 - 1 else -(2**31)
        return self.opaque

    def group(self, topic: str) -> str:
        """Return the sender to a topic."""
        if self.flavour == "by name":
            return "" if topic.startswith("%") else _GROUPS[TOPICS.index(topic) % len(_GROUPS)]
        return self.random.choice(_GROUPS)

    def plain(self) -> bytes:
        random = self.random
        topic, number = random.choice(TOPICS), self.number()
        flag = frames.ONEWAY if random.random() < 0.1 else 0
        ids = {}
        if random.random() < 0.6:
            # Some are repeated, but not within a chunk, as counts of repeats then depend on how it is cut.
            self._ids = (self._ids + 1) % (20 * len(TOPICS))
            # Nor are those of others, if several clients may send at once.
            owner = self.link if self.flavour == "all or nothing" else 0
            topic, ids = TOPICS[self._ids % len(TOPICS)], {"UNIQ_KEY": f"{owner:08X}{self._ids:024X}"}
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
        """Return an unlimited frame of the client, unless subscriptions are limited."""
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
        """Return a frame that Python must read."""
        random = self.random
        number, topic = self.number(), random.choice(TOPICS)
        flag = frames.ONEWAY if random.random() < 0.2 else 0
        body, group = bytes(random.randint(0, 300)), self.group(topic)
        others: tuple[Callable[[], bytes], ...] = (
            lambda: frames.send_batch(topic, random.randint(1, 5), number, flag=flag, group=group),
            lambda: frames.send(topic, number, batch=True, body=body, group=group),
            lambda: frames.send_half(topic, number, group=group, UNIQ_KEY=f"half {self.link} {next(self._halves)}"),
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
            # Sluice's own answers come before others of their chunk.
            if random.random() < 0.3:
                return random.choice((frames.view_limits(number, flag=flag), frames.update_limit(topic, "5", number)))
            return frames.end_transaction(random.randrange(5), number, flag=flag, what=random.choice((0, 8, 12)))
        return random.choice(others)()

    def answer(self) -> bytes:
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

    def beat(self) -> bytes:
        return frames.heartbeat(self.number())

    async def begin(self) -> None:
        if self.random.random() < 0.85:
            # This many headers are parsed one by one at first.
            await self.say(CLIENT, b"".join(self.beat() for _ in range(16)))
            if self.random.random() < 0.5:
                self.receive()
                await self.say(BROKER, b"".join(map(frames.answer, self.asked)))
                self.asked.clear()

    def receive(self) -> None:
        """Record the answers that the broker must send."""
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
            self.receive()
            for _ in range(random.choice((0, 1, 2, len(self.asked)))):
                self.unsaid[side] += self.answer()
            if random.random() < 0.005:
                self.unsaid[side] += self.garbage()


async def talk(both: Both, random: Random) -> None:
    reuses = random.random() < 0.3
    # With reused numbers, the known request depends on how streams are cut into chunks, and Python alone also settles
    # some numbers too early.
    both.knows_in_flight = not reuses and _scans(both)
    await play(both, random, _RULES, partial(RocketMQTalk, reuses=reuses))


def _scans(both: Both) -> bool:
    """Say whether the way without the turn also reads with the compiled extension."""
    return bool(both.ways[1].path.server.listeners[0].options.scan != "python")


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
    """Say whether a client has received the same, except for the order of own answers.

    Those of one chunk may come in any order. The turn forwards the beginning of a broker's header once the rest has
    come, so its own answers need not wait for the end of the frame.
    """
    if side is BROKER:
        return False
    (theirs, own, _), (theirs_wanted, own_wanted, in_gap) = map(_apart, (got, wanted))
    if not theirs_wanted.startswith(theirs) or len(theirs_wanted) - len(theirs) > 64 * 1024:
        return False
    return own == own_wanted if in_gap else not own_wanted - own


def _apart(data: bytes) -> tuple[bytes, Counter[bytes], bool]:
    """Return the broker's bytes, own answers, and whether the last frame of the broker is complete."""
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
    """Return the arguments of ``both_ways.run`` for a schedule."""
    others: dict[str, Any] = {"internal_topics": random.choice(("refuse", "pass"))} if random.random() < 0.3 else {}
    return {
        "options": (RocketMQOptions(**others), RocketMQOptions(**others, scan=random.choice(("python", "auto")))),
        "same": same,
        **talks.settings(random),
    }
