import dataclasses
import io
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from admin.config import folders, plugins
from admin.config.sources import Flags, load
from admin.run.check import report, show
from admin.run.composition import compose
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.rocketmq import PROTOCOL

Write = Callable[[str], str]
LISTENER = '[[listeners]]\nlisten = "127.0.0.1:1"\nbroker = "127.0.0.1:2"\nname = "main"\n'
MONDAY_NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def section(title: str, file: str, now: datetime = MONDAY_NOON) -> list[str]:
    stream = io.StringIO()
    show(report(compose(load(file, {}, Flags())), now), stream)
    text = stream.getvalue()
    begin = text.index(f"{title}")
    lines = text[begin:].split("\n\n")[0].splitlines()[1:]
    return [" ".join(line.split()) for line in lines]


def limit(kind: str, name: str, *more: str) -> str:
    return "\n".join([f'[[limits]]\nkind = "{kind}"\nname = "{name}"', *more, ""])


def test_each_protocol_reports_its_reader(write: Write) -> None:
    second = '[[listeners]]\nlisten = "127.0.0.1:3"\nbroker = "127.0.0.1:4"\nname = "other"\nprotocol = "amqp10"\n'
    told = section("Other settings", write(LISTENER + second))
    assert [line.split()[0] for line in told if " read by " in line] == ["rocketmq", "amqp10"]


def test_all_fields_of_a_rule_are_shown(write: Write) -> None:
    text = LISTENER + "".join(
        [
            limit("topic", "orders", "rate = 500", "bytes_per_s = 1048576", "bytes_burst_s = 0.5", "busy_code = 215"),
            limit("topic", "mail", "rate = 5", 'action = "delay"', "max_delay_s = 1.5", 'count = "requests"'),
            limit("topic", "bulk", "rate = 5", 'action = "delay"', "spool = true"),
            limit("topic", "trial", "rate = 5", 'action = "shadow"'),
            limit("topic", "kept", "rate = 5", 'action = "off"'),
            limit("topic", "fair-*", "rate = 5", 'fair_by = "client"'),
            limit("topic", "warm-*", "rate = 5", "warm_up_s = 30"),
            limit("client", "10.0.0.0/8", "rate = 5", "shared = true"),
            limit("client", "10.0.0.0/8", "rate = 1"),
            limit("listener", "*", "rate = 9", "shared = true"),
        ]
    )
    rules = section("Rules", write(text))
    columns = rules[0]
    assert columns == "rule limit above it settings from"
    shown = {line.split()[0]: line.partition(" ")[2].rpartition(" ")[0] for line in rules[1:]}
    assert shown["topic:orders"] == ("500/s + 1048576 bytes/s refuse with code 215 bytes_burst_s = 0.5")
    assert shown["topic:mail"] == "5 requests/s hold up to 1.5 s, then refuse"
    assert shown["topic:bulk"] == "5/s hold up to 2 s in the spool, then refuse"
    assert shown["topic:trial"] == "5/s count only"
    assert shown["topic:kept"] == "off (5/s)"
    assert shown["topic:fair-*"] == "5/s, shared by client refuse"
    assert shown["topic:warm-*"] == "5/s refuse warm_up_s = 30"
    assert shown["total:client:10.0.0.0/8"] == "5/s refuse"
    assert shown["client:10.0.0.0/8"] == "1/s refuse"
    assert shown["total:listener:*"] == "9/s refuse"
    assert shown["topic:*"] == "unlimited"


def test_no_rule_promises_what_its_protocol_does_not_do(write: Write) -> None:
    text = LISTENER.rstrip("\n") + '\nprotocol = "rocketmq-grpc"\n'
    text += limit("topic", "orders", "rate = 5", "busy_code = 2")
    text += limit("transaction", "orders", "rate = 5", "spool = true")
    rules = section("Rules", write(text))
    assert rules[1].startswith("topic:orders 5/s refuse ")
    assert rules[2].startswith("transaction:orders 5/s hold up to 2 s, then refuse ")


def test_hours_say_whether_they_hold_now(write: Write) -> None:
    file = write(
        LISTENER
        + limit("topic", "a", "rate = 1")
        + limit("topic", "a", "rate = 2", 'between = "09:00-18:00"', 'days = ["mon"]')
    )

    def rules(now: datetime) -> list[str]:
        return [line for line in section("Rules", file, now) if line.startswith("topic:a ")]

    assert rules(MONDAY_NOON) == [
        "topic:a 09:00-18:00 mon UTC 2/s refuse now sluice.toml:9",
        "topic:a 1/s refuse not now sluice.toml:5",
    ]
    assert rules(MONDAY_NOON.replace(hour=20)) == [
        "topic:a 1/s refuse sluice.toml:5",
        "topic:a 09:00-18:00 mon UTC 2/s refuse not now sluice.toml:9",
    ]


def test_consumer_confirms_are_shown_with_their_promise(write: Write) -> None:
    confirm = 'confirm = "after_consume"'
    text = LISTENER + 'protocol = "amqp091"\n'
    text += limit("queue", "a", confirm) + limit("queue", "b", "rate = 5", confirm)
    text += limit("exchange", "e", confirm, "confirm_queues = 3", "confirm_below_bytes = 100", 'fallback = "nack"')
    text += limit("exchange", "left alone", confirm)
    rules = section("Rules", write(text))
    assert rules[:2] == [
        "rule limit above it settings from",
        "queue:a unlimited confirm = after_consume sluice.toml:6",
    ]
    assert rules[-2:] == [
        (
            "queue:a, queue:b: a message below 4096 bytes is confirmed once its consumers have acknowledged it or the"
            " broker has stored it, never before; a message not acknowledged within 5 s is published again for"
            " the broker to confirm."
        ),
        (
            "exchange:e: a message below 100 bytes is confirmed once consumers of 3 queues have acknowledged it or the"
            " broker has stored it, never before; a message not acknowledged within 5 s is refused."
        ),
    ]


def queues(name: str, place: object, origins: object) -> Protocol:
    """Return a protocol without default limits, some of whose requests cannot be refused."""
    del name, place, origins
    kinds = (
        Kind("queue", "", waits="what expects no answer waits"),
        Kind("exchange", "", waits="what expects no answer waits"),
        Kind("delivery", "", action="delay", consumes=True, refuses=False, waits="all of it waits"),
    )
    return dataclasses.replace(PROTOCOL, kinds=kinds, default_rules=(), scopes=("user",))


def test_unrefusable_requests_are_shown_as_waiting(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "protocol", queues)

    def notes(*limits: str) -> list[str]:
        return [line for line in section("Rules", write(LISTENER + "".join(limits))) if "waits" in line]

    sent, consumed = "what expects no answer waits.", "delivery: all of it waits."
    queue = limit("queue", "a", "rate = 1")
    assert notes(queue, limit("delivery", "a", "rate = 1")) == [f"queue: {sent}", consumed]
    assert notes(limit("queue", "a", "rate = 1", 'action = "shadow"')) == []
    assert notes(limit("user", "a", "rate = 1")) == [f"queue, exchange: {sent}"]
    rules = section("Rules", write(LISTENER + queue + limit("delivery", "a", "rate = 1")))
    assert rules[1:3] == [
        "queue:a 1/s refuse sluice.toml:5",
        "delivery:a 1/s hold sluice.toml:9",
    ]


def credit(name: str, place: object, origins: object) -> Protocol:
    """Return a protocol whose clients wait for credit. Under the name ``held`` it has the same kinds and holds."""
    del place, origins
    by_credit = name != "held"
    kinds = (
        Kind("queue", "", action="delay" if by_credit else "reject", waits=f"{name} waits", by_credit=by_credit),
        Kind("delivery", "", action="delay", consumes=True, refuses=False, by_credit=by_credit),
    )
    return dataclasses.replace(PROTOCOL, name=name, kinds=kinds, default_rules=(), scopes=("user",))


def test_credit_waits_are_not_shown_as_held(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "protocol", credit)
    listener = LISTENER + 'protocol = "credit"\n'

    def above(kind: str, *fields: str) -> str:
        rule = section("Rules", write(listener + limit(kind, "a", "rate = 1", *fields)))[1]
        return rule.removeprefix(f"{kind}:a 1/s ").rpartition(" ")[0]

    assert [above(kind) for kind in ("queue", "delivery", "user")] == ["withhold credit"] * 3
    assert above("queue", 'action = "reject"') == "refuse"
    assert above("queue", 'action = "shadow"') == "count only"


def test_without_any_limit_it_is_shown_that_all_passes(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = "no limits are configured, and the protocol has no default limits, so all requests pass"
    assert passes not in compose(load(write(LISTENER), {}, Flags())).lint
    monkeypatch.setattr(plugins, "protocol", queues)
    assert compose(load(write(LISTENER), {}, Flags())).lint == (passes,)
    assert compose(load(write(LISTENER + limit("queue", "a", 'rate = "unlimited"')), {}, Flags())).lint == ()


def test_non_default_listener_settings_are_shown(write: Write) -> None:
    more = 'tls = "pass"\nbackup_brokers = ["127.0.0.1:3"]\nidle_timeout_s = 90.0\nexempt = ["10.0.0.1", "::/0"]\n'
    options = '[listeners.options]\nremote_update_from = ["10.0.0.0/8"]\nmax_frame_bytes = 16777216\n'
    assert section("Listeners", write(LISTENER + more + options)) == [
        "listen broker protocol name scope settings from",
        (
            "127.0.0.1:1 127.0.0.1:2 rocketmq main default backup_brokers = [127.0.0.1:3], exempt = [10.0.0.1/32,"
            " ::/0], idle_timeout_s = 90, tls = pass, remote_update_from = [10.0.0.0/8] sluice.toml:1"
        ),
    ]


def test_file_locations_are_shown(write: Write) -> None:
    def rows(text: str) -> dict[str, str]:
        plan = compose(load(write(text), {}, Flags()))
        stream = io.StringIO()
        show(report(plan, MONDAY_NOON, folders.state_dir(plan.settings, {"STATE_DIRECTORY": "/srv"})), stream)
        lines = stream.getvalue().partition("Other settings")[2].splitlines()[1:]
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}

    shown = rows(LISTENER)
    assert shown["rejection_log"] == "/srv/127.0.0.1-1/rejections"
    assert shown["spool"] == "/srv/127.0.0.1-1/spool"
    assert shown["[alarms]"] == "memory_high_watermark = 0.6, disk_free_bytes = 1073741824"
    assert rows('[spool]\ndir = "off"\n' + LISTENER)["spool"] == "off"
    assert rows('state_dir = "off"\n' + LISTENER)["spool"] == "off (there is no state directory; set spool.dir)"


def test_no_secret_is_shown(write: Write) -> None:
    stream = io.StringIO()
    show(
        report(
            compose(load(write('[admin]\ntoken = "a-very-secret-token-0000"\n' + LISTENER), {}, Flags())), MONDAY_NOON
        ),
        stream,
    )
    assert "secret" not in stream.getvalue()
