from collections.abc import Callable

import pytest

from admin.config.sources import Flags, load
from admin.run.composition import compose

Write = Callable[[str], str]
LISTENER = '[[listeners]]\nlisten = "127.0.0.1:1"\nbroker = "127.0.0.1:2"\n'
TOPIC = '[[limits]]\nkind = "topic"\nname = "a"\nrate = 5\n'
ADAPTIVE = '[[limits]]\nkind = "listener"\nname = "*"\nadaptive = true\n'
BYTES = TOPIC.replace("rate", "bytes_per_s")
FREE = TOPIC.replace("5", '"unlimited"')
QUEUE = 'protocol = "amqp091"\n[[limits]]\nkind = "queue"\nname = "a"\n'
EXCHANGE = QUEUE.replace("queue", "exchange")
CONFIRM = 'confirm = "after_consume"\n'


def warnings(file: str) -> list[str]:
    return compose(load(file, {}, Flags())).warnings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TOPIC + "max_delay_s = 3", '8: limits[0].max_delay_s = 3.0: has no effect without action = "delay"'),
        (FREE + "fair_by = 'client'", '8: limits[0].fair_by = "client": has no effect without a rate or bytes_per_s'),
        (
            TOPIC + "action = 'delay'\nmax_delay_s = 3.5",
            "9: limits[0].max_delay_s: 3.5 s is longer than the 3 s that most clients wait for a response",
        ),
        (
            TOPIC.replace("5", "0") + "action = 'delay'",
            '8: limits[0].action = "delay": holds all requests and never admits',
        ),
        (BYTES.replace("5", "0"), "7: limits[0].bytes_per_s = 0.0: refuses everything; remove it"),
        (
            "[defaults.subscription]\nrate = 5\nspool = true",
            "6: defaults.subscription.spool = true: has no effect: only published messages are spooled",
        ),
        (
            QUEUE.replace("amqp091", "amqp10") + "rate = 5\nspool = true",
            "9: limits[0].spool = true: has no effect: messages wait at the sender",
        ),
        (EXCHANGE + CONFIRM, '8: limits[0].confirm = "after_consume": has no effect without confirm_queues'),
        (
            QUEUE + 'rate = 5\nfallback = "nack"',
            '9: limits[0].fallback = "nack": has no effect without confirm = "after_consume"',
        ),
        (
            'proxy_protocol_from = ["10.0.0.0/8", "::/0"]\n',
            '4: listeners[0].proxy_protocol_from[1] = "::/0": lets every client forge its address',
        ),
        ('scope = "vip"\n', '4: listeners[0].scope = "vip": has no effect: no limit of kind listener matches it'),
        (ADAPTIVE + "burst_s = 2", "8: limits[0].burst_s = 2.0: has no effect with adaptive = true"),
        (
            ADAPTIVE.replace("adaptive", "rate").replace("true", "5") + "floor = 9",
            "8: limits[0].floor = 9.0: has no effect",
        ),
        (TOPIC + "weight = 2", "8: limits[0].weight = 2: has no effect: no limit of kind listener has adaptive = true"),
        (
            ADAPTIVE + "weight = 2",
            "8: limits[0].weight = 2: has no effect here; set weight on the limit of a topic or queue",
        ),
        (
            LISTENER.replace(":1", ":3").replace("127.0.0.1:2", "127.0.0.9:2") + ADAPTIVE,
            '4: listeners[1].scope = "default": one limit, adaptive listener:*, would mix the latencies of the brokers',
        ),
        (
            "reuse_port = true\n" + TOPIC,
            "4: listeners[0].reuse_port = true: each process on this port applies limits separately (",
        ),
        (TOPIC + 'fair_by = "certificate"', '8: limits[0].fair_by = "certificate": no listener asks clients for'),
    ],
)
def test_settings_without_effect_or_unsafe_are_named_with_their_line(write: Write, text: str, line: str) -> None:
    (told,) = warnings(write(LISTENER + text))
    assert told.startswith(f"sluice.toml:{line}")


GRPC = LISTENER.rstrip("\n").replace(":1", ":3").replace(":2", ":4") + '\nprotocol = "rocketmq-grpc"\n'


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (TOPIC + "busy_code = 2\n", ["9: limits[0].busy_code = 2: has no effect: refusals over gRPC always have the"]),
        (
            TOPIC + 'action = "delay"\nspool = true\n',
            ["10: limits[0].spool = true: has no effect: requests over gRPC wait in memory only"],
        ),
        (
            '[[limits]]\nkind = "client"\nname = "*"\nrate = 5\nbusy_code = 2\n',
            ["9: limits[0].busy_code = 2: has no effect: refusals over gRPC"],
        ),
        ('options.advertise = "127.0.0.1:4"\n' + TOPIC, ['5: listeners[0].options.advertise = "127.0.0.1:4": is']),
        (TOPIC + "busy_code = 2\n" + LISTENER, []),
    ],
)
def test_what_has_no_effect_over_grpc_alone_is_named(write: Write, text: str, lines: list[str]) -> None:
    told = warnings(write(GRPC + text))
    assert len(told) == len(lines)
    assert all(one.startswith(f"sluice.toml:{line}") for one, line in zip(told, lines, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        TOPIC,
        "[defaults.retry_group]\nrate = 5\nmax_delay_s = 1\n",
        QUEUE + CONFIRM + "confirm_within_s = 1\nconfirm_below_bytes = 100\n",
        EXCHANGE + CONFIRM + "confirm_queues = 2\n",
        'scope = "vip"\nmax_connections_per_client = 5\n',
        'scope = "vip"\n[[limits]]\nkind = "listener"\nname = "v*"\nrate = 5\n',
        ADAPTIVE + "fair_by = 'topic'\nfloor = 5\nceiling = 50\naction = 'reject'\n" + TOPIC + "weight = 2\n",
        # Ports of one host belong to one broker.
        LISTENER.replace(":1", ":3").replace("1:2", "1:4") + ADAPTIVE,
        # Rules that alternate.
        TOPIC + 'between = "06:00-22:00"\n' + TOPIC + 'between = "22:00-06:00"\n',
        TOPIC + 'between = "06:00-22:00"\n' + TOPIC,
        TOPIC + 'between = "06:00-22:00"\ndays = ["sun"]\n' + TOPIC + 'between = "06:00-22:00"\n',
    ],
)
def test_sensible_settings_get_no_warning(write: Write, text: str) -> None:
    assert warnings(write(LISTENER + text)) == []


def test_limits_that_only_count_are_named(write: Write) -> None:
    shadow = TOPIC + "action = 'shadow'\n"
    assert warnings(write(LISTENER + shadow)) == [
        'every limit has action = "shadow", so requests are counted but never refused'
    ]
    assert warnings(write(LISTENER + shadow + "[defaults.topic]\nrate = 3\n")) == []
