"""Seeds of the Rust core's targets, which are in native/fuzz."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from amqp10_playbook import codec
from amqp_playbook import frames as amqp
from playbook.amqp_one_captures import AMQP_ONE_CAPTURES

from fuzz_targets.rocketmq import BY_BROKER, BY_CLIENT
from proxy.deciding.batch import Side


def _rocketmq() -> Iterable[bytes]:
    for cut in (0, 30, 400):
        yield from (struct.pack(">H", cut) + frame for frame in (*BY_CLIENT, *BY_BROKER))
        yield struct.pack(">H", cut) + b"".join(BY_CLIENT[:8])
        yield struct.pack(">H", cut) + b"".join(BY_BROKER[:8])


def _steps(*chunks: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack(">BH", options, len(chunk)) + chunk for options, chunk in chunks)


def _amqp091() -> Iterable[bytes]:
    publishes = [
        b"".join(amqp.publish(channel, exchange, key, b"body"))
        for channel, exchange, key in ((1, "", "orders"), (2, "e", "k"), (3, "e", ""))
    ]
    headers = b"".join(amqp.publish(1, "e", "k", b"x" * 300, headers={"a": "b"}, body_bytes=100))
    confirms = [amqp.ack(1, 1), amqp.ack(2, 1, multiple=True), amqp.nack(1, 2)]
    for options in (7 << 3, 7 << 3 | 3, 2, 4 << 3, 5 << 3 | 64):
        yield _steps((options, b"".join(publishes)), (options, b"".join(confirms)))
        yield _steps((options, headers[:50]), (options, headers + publishes[0]))
        for frame in (*publishes, headers, *confirms):
            yield _steps((options, frame))


def _amqp10() -> Iterable[bytes]:
    said = [codec.say(1, "disposition", role=True, first=3, last=9, settled=True)]
    said += [codec.say(1, "transfer", codec.message(b"x"), handle=handle, delivery_id=1) for handle in range(3)]
    window = {"incoming_window": 1, "next_outgoing_id": 0, "outgoing_window": 2}
    said += [codec.say(1, "flow", handle=0, link_credit=9, delivery_count=4294967295, **window), codec.EMPTY]
    for options in (7, 7 | 8, 5 | 8, 0x50 | 8 | 7):
        yield _steps((options, b"".join(said)))
        for frame in said:
            yield _steps((options, frame))
        for capture in AMQP_ONE_CAPTURES:
            for side in Side:
                stream = capture.sent(side)
                at = stream.find(b"AMQP\x00\x01\x00\x00") + 8
                yield _steps((options, stream[at : at + 1500]))


SEEDS: Final[Mapping[str, Callable[[], Iterable[bytes]]]] = {
    "native_rocketmq": _rocketmq,
    "native_amqp091": _amqp091,
    "native_amqp10": _amqp10,
}
