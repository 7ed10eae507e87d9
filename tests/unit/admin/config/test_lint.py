from collections.abc import Callable

import pytest

from admin.config.sources import Flags, load
from admin.run.composition import compose

Write = Callable[[str], str]
LISTENER = '[[listeners]]\nlisten = "127.0.0.1:1"\nbroker = "127.0.0.1:2"\n'
TOPIC = '[[limits]]\nkind = "topic"\nname = "a"\nrate = 5\n'
FREE = '[[limits]]\nkind = "topic"\nname = "a"\nrate = "unlimited"\n'
BYTES = '[[limits]]\nkind = "topic"\nname = "a"\nbytes_per_s = 5\n'


def warnings(file: str) -> list[str]:
    return compose(load(file, {}, Flags())).warnings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TOPIC + "max_delay_s = 3", '8: limits[0].max_delay_s = 3.0: means nothing without action = "delay"'),
        (
            TOPIC + "action = 'delay'\nmax_delay_s = 3.5",
            (
                "9: limits[0].max_delay_s = 3.5: is longer than most clients wait for an answer, 3 s: they give up and"
                " may send again"
            ),
        ),
        (
            TOPIC.replace("5", "0") + "action = 'delay'",
            (
                '8: limits[0].action = "delay": holds everything for 2 s and then refuses it, since nothing is'
                ' admitted; "reject" says so'
            ),
        ),
        (TOPIC + "spool = true", '8: limits[0].spool = true: means nothing without action = "delay"'),
        (
            "[defaults.subscription]\nrate = 5\nspool = true",
            (
                "6: defaults.subscription.spool = true: means nothing here: only what is sent is put aside, not what is"
                " consumed"
            ),
        ),
        (FREE + "warm_up_s = 3", "8: limits[0].warm_up_s = 3.0: means nothing without a limit"),
        (
            BYTES.replace("5", "0"),
            "7: limits[0].bytes_per_s = 0: refuses everything; leave it out for no limit on bytes",
        ),
        (
            BYTES + "burst_s = 2",
            "8: limits[0].burst_s = 2.0: means nothing without a rate; the bytes have bytes_burst_s",
        ),
        (
            TOPIC + "action = 'delay'\nmax_delay_s = 0",
            '9: limits[0].max_delay_s = 0: holds nothing; action = "reject" says the same',
        ),
        (
            TOPIC + "fair_by = 'client'\nmax_fair_keys = 1",
            "9: limits[0].max_fair_keys = 1: makes one share for all, so fair_by changes nothing",
        ),
        (
            '[defaults.subscription]\nrate = 5\nfair_by = "producer_group"',
            (
                '6: defaults.subscription.fair_by = "producer_group": tells nobody apart here: who asks for messages'
                " has no producer group"
            ),
        ),
    ],
)
def test_a_key_that_changes_nothing_is_named_with_its_line(write: Write, text: str, line: str) -> None:
    assert warnings(write(LISTENER + text)) == [f"sluice.toml:{line}"]


def test_limits_that_only_count_are_named(write: Write) -> None:
    shadow = TOPIC + "action = 'shadow'\n"
    assert warnings(write(LISTENER + shadow)) == ['every limit has action = "shadow": all passes and is only counted']
    assert warnings(write(LISTENER + shadow + "[defaults.topic]\nrate = 3\n")) == []


def test_a_rule_that_never_holds_is_named(write: Write) -> None:
    always = TOPIC + 'between = "00:00-24:00"\n'
    assert warnings(write(LISTENER + always + TOPIC)) == [
        "sluice.toml:9: rule topic:a (always) never holds: at all its hours another one of the same pattern does"
    ]
    assert warnings(write(LISTENER + always + TOPIC + 'between = "09:00-10:00"\n')) == [
        (
            "sluice.toml:9: rule topic:a 09:00-10:00 UTC never holds: at all its hours another one of the same"
            " pattern does"
        )
    ]


def test_rules_that_take_turns_are_not_doubted(write: Write) -> None:
    by_day, by_night = TOPIC + 'between = "06:00-22:00"\n', TOPIC + 'between = "22:00-06:00"\n'
    once_a_week = TOPIC + 'between = "06:00-22:00"\ndays = ["sun"]\n'
    assert warnings(write(LISTENER + by_day + by_night)) == []
    assert warnings(write(LISTENER + by_day + TOPIC)) == []
    assert warnings(write(LISTENER + once_a_week + by_day)) == []
    (line,) = warnings(write(LISTENER + by_day + by_night + TOPIC))
    assert line.startswith("sluice.toml:14: rule topic:a (always) never holds")


def test_rules_whose_hours_overlap_in_part_are_named_with_the_one_that_wins(write: Write) -> None:
    by_day, by_night = TOPIC + 'between = "06:00-22:00"\n', TOPIC + 'between = "21:00-06:00"\n'
    assert warnings(write(LISTENER + by_day + by_night)) == [
        (
            "sluice.toml:9: rule topic:a 21:00-06:00 UTC overlaps with topic:a 06:00-22:00 UTC (sluice.toml:4): when"
            " both would hold, the latter does, as it comes first"
        )
    ]


def test_headers_that_are_taken_from_anybody_are_named(write: Write) -> None:
    listener = LISTENER + 'proxy_protocol_from = ["10.0.0.0/8", "::/0"]\n'
    (warning,) = warnings(write(listener))
    assert warning == (
        'sluice.toml:4: listeners[0].proxy_protocol_from[1] = "::/0": lets every client say who it is; name the load'
        " balancers only"
    )


def test_listeners_of_one_scope_that_differ_are_named(write: Write) -> None:
    first = LISTENER + 'name = "a"\nexempt = ["10.0.0.0/8"]\nmax_connections_per_client = 5\n'
    second = LISTENER.replace(":1", ":3") + 'name = "b"\n'
    each = "unlike that of listeners[0], of the same scope: each goes by its own"
    assert warnings(write(first + second)) == [
        f"sluice.toml:7: listeners[1].exempt = []: {each}",
        f"sluice.toml:7: listeners[1].max_connections_per_client: {each}, and counts the connections to both",
    ]
    assert (
        warnings(write(first + second + 'scope = "default"\nexempt = ["10.0.0.0/8"]\nmax_connections_per_client = 5'))
        == []
    )


@pytest.mark.parametrize("source", ["flag", "variable"])
def test_what_a_flag_or_a_variable_takes_away_from_a_rule_is_named(write: Write, source: str) -> None:
    file = write(LISTENER + TOPIC + "fair_by = 'client'\nbytes_per_s = 5\n" + TOPIC.replace('"a"', '"b"'))
    texts = ("topic:a=9/s", "topic:b=9/s")
    environ, flags = ({"SLUICE_LIMIT": " ".join(texts)}, Flags()) if source == "variable" else ({}, Flags(limits=texts))
    name = "SLUICE_LIMIT" if source == "variable" else "--limit"
    assert compose(load(file, environ, flags)).warnings() == [
        (
            f"sluice.toml:4: limits[0]: replaced as a whole by {name} topic:a=9/s: what it says besides a rate does not"
            " hold either (bytes_per_s, fair_by)"
        )
    ]


@pytest.mark.parametrize(
    "used", ["max_connections_per_client = 5\n", '[[limits]]\nkind = "listener"\nname = "v*"\nrate = 5\n']
)
def test_a_scope_that_nothing_uses_is_named(write: Write, used: str) -> None:
    text = LISTENER + 'scope = "vip"\n'
    assert warnings(write(text)) == [
        'sluice.toml:4: listeners[0].scope = "vip": is used by nothing: no limit of kind listener names it'
    ]
    assert warnings(write(text + used)) == []


def test_what_is_meant_is_not_doubted(write: Write) -> None:
    assert warnings(write(LISTENER + TOPIC)) == []
    assert warnings(write(LISTENER + "[defaults.retry_group]\nrate = 5\nmax_delay_s = 1\n")) == []


QUEUE = LISTENER + 'protocol = "amqp091"\n[[limits]]\nkind = "queue"\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            QUEUE.replace("queue", "exchange") + 'confirm = "after_consume"',
            (
                '8: limits[0].confirm = "after_consume": leaves all to the broker: confirm_queues must say to how many'
                " queues each message goes"
            ),
        ),
        (
            QUEUE + 'rate = 5\naction = "off"\nconfirm = "after_consume"',
            '10: limits[0].confirm = "after_consume": means nothing with action = "off"',
        ),
        (
            QUEUE + 'rate = 5\nfallback = "nack"',
            '9: limits[0].fallback = "nack": means nothing without confirm = "after_consume"',
        ),
    ],
)
def test_confirms_that_are_left_to_the_broker_are_named(write: Write, text: str, line: str) -> None:
    assert warnings(write(text)) == [f"sluice.toml:{line}"]


def test_confirms_by_consumers_need_no_limit(write: Write) -> None:
    says = 'confirm = "after_consume"\nconfirm_within_s = 1\nconfirm_below_bytes = 100\n'
    exchange = QUEUE.replace("queue", "exchange") + says + "confirm_queues = 2\n"
    for text in (QUEUE + says, exchange):
        assert warnings(write(text)) == []


def test_limits_by_certificates_that_nobody_is_asked_for_are_named(write: Write) -> None:
    limits = (
        '[[limits]]\nkind = "certificate"\nname = "a"\nrate = 1\n'
        '[[limits]]\nkind = "topic"\nname = "a"\nrate = 1\nfair_by = "certificate"\n'
    )
    told = "no listener asks clients for certificates; give it tls_client_ca_file"
    assert warnings(write(LISTENER + limits)) == [
        f'sluice.toml:5: limits[0].kind = "certificate": {told}',
        f'sluice.toml:12: limits[1].fair_by = "certificate": {told}',
    ]
