from collections.abc import Callable

import pytest

from admin.composition import Plan, compose
from admin.errors import SettingsError
from admin.sources import Flags, load
from limiter.resource import Resource
from proxy.protocols.rocketmq.options import RocketMQOptions

Write = Callable[[str], str]
PAIR = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])


FORM = "KIND:NAME-or-glob=RATE/s, =0/s or =unlimited, with a number of messages per second, e.g. topic:orders=500/s"


def plan(text: str | None = None, flags: Flags = PAIR, write: Write | None = None, **environ: str) -> Plan:
    file = write(text) if write is not None and text is not None else None
    return compose(load(file, environ, flags))


def lines(text: str | None = None, flags: Flags = PAIR, write: Write | None = None, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        plan(text, flags, write, **environ)
    return list(caught.value.lines)


def limits(*texts: str) -> Flags:
    return Flags(listen=PAIR.listen, broker=PAIR.broker, limits=texts)


def rate(planned: Plan, kind: str, name: str) -> tuple[float | None, str]:
    rule = planned.rule_set.match(Resource(kind, name))
    return rule.rate_per_s, rule.source


def test_without_any_limit_the_protocols_own_hold() -> None:
    planned = plan()
    assert rate(planned, "topic", "orders") == (2000, "built-in")
    assert rate(planned, "retry_group", "billing") == (100, "built-in")
    assert rate(planned, "topic", "x_REPLY_TOPIC") == (None, "built-in")


def test_with_one_limit_given_what_it_does_not_match_is_unlimited() -> None:
    planned = plan(flags=limits("topic:orders=5/s"))
    assert rate(planned, "topic", "orders") == (5, "--limit")
    assert rate(planned, "topic", "other") == (None, "default")
    assert rate(planned, "retry_group", "billing") == (None, "default")


def test_what_cannot_be_read_gets_the_strictest_limit_in_force() -> None:
    assert rate(plan(), "topic", "_unparsable") == (100, "built-in")
    named = plan(flags=limits("topic:orders=10/s", "topic:payments=50/s"))
    assert rate(named, "topic", "_unparsable") == (10, "built-in")
    groups = plan(flags=limits("retry_group:*=5/s"))
    assert rate(groups, "topic", "_unparsable") == (5, "built-in")


def test_a_topic_that_is_refused_altogether_does_not_cut_off_what_cannot_be_read() -> None:
    assert rate(plan(flags=limits("topic:old=0/s", "topic:a=7/s")), "topic", "_unparsable") == (7, "built-in")
    assert rate(plan(flags=limits("topic:old=0/s")), "topic", "_unparsable") == (1, "built-in")


def test_what_cannot_be_read_is_limited_by_a_rule_that_names_it_and_unlimited_where_nothing_is_limited() -> None:
    named = plan(flags=limits("topic:a=7/s", "topic:_unparsable=3/s"))
    assert rate(named, "topic", "_unparsable") == (3, "--limit")
    assert rate(plan(flags=limits("topic:*=unlimited")), "topic", "_unparsable")[0] is None


def test_a_flags_rule_wins_over_the_environments_and_that_over_the_files(write: Write) -> None:
    text = "".join(f'[[limits]]\nkind = "topic"\nname = "{name}"\nrate = 1\n' for name in "abc")
    planned = plan(text, limits("topic:c=3/s"), write, SLUICE_LIMIT="topic:b=2/s topic:c=2/s")
    assert rate(planned, "topic", "a") == (1, "sluice.toml:1")
    assert rate(planned, "topic", "b") == (2, "SLUICE_LIMIT")
    assert rate(planned, "topic", "c") == (3, "--limit")


def test_defaults_of_the_file_stand_in_for_the_built_in_ones(write: Write) -> None:
    planned = plan("[defaults.topic]\nrate = 7\nburst_s = 3\nbreak_s = 0\n", write=write)
    rule = planned.rule_set.match(Resource("topic", "orders"))
    assert (rule.rate_per_s, rule.burst_s, rule.break_s, rule.source) == (7, 3, 0, "sluice.toml:1")
    assert rate(planned, "retry_group", "x") == (None, "default")


def test_unlimited_and_switched_off_rules_do_not_limit(write: Write) -> None:
    text = (
        '[[limits]]\nkind = "topic"\nname = "free"\nrate = "unlimited"\n'
        '[[limits]]\nkind = "topic"\nname = "off"\nrate = 5\nenabled = false\n'
    )
    planned = plan(text, write=write)
    assert planned.rule_set.limit(Resource("topic", "free")) is None
    assert planned.rule_set.limit(Resource("topic", "off")) is None


def test_the_global_switch_reaches_the_rule_set() -> None:
    planned = plan(SLUICE_LIMITING="false")
    assert not planned.rule_set.enabled
    assert planned.warnings() == ["limiting = false: everything passes"]


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        ("topic:orders=500", f"--limit 'topic:orders=500': the rate needs its unit: 500/s; allowed: {FORM}"),
        ("tpoic:orders=5/s", "--limit 'tpoic:orders=5/s': kind 'tpoic' is unknown; did you mean \"topic\"?"),
        ("queue:x=5/s", "--limit 'queue:x=5/s': kind 'queue' is unknown; allowed here: retry_group, topic"),
    ],
)
def test_a_bad_limit_of_the_command_line_is_one_line(limit: str, line: str) -> None:
    assert lines(flags=limits(limit)) == [line]


def test_a_bad_limit_of_the_environment_names_the_variable() -> None:
    (line,) = lines(SLUICE_LIMIT="nonsense")
    assert line.startswith("SLUICE_LIMIT 'nonsense' is not of the form KIND:NAME=RATE/s; allowed: ")


def test_every_bad_limit_is_named() -> None:
    assert len(lines(flags=limits("a", "b", "topic:c=1/s"), SLUICE_LIMIT="d")) == 3


def test_a_rule_that_cannot_be_names_its_line(write: Write) -> None:
    text = '\n[[limits]]\nkind = "topic"\nname = "a"\nrate = 1\nbreak_s = 2\n'
    (line,) = lines(text, write=write)
    assert line.startswith("sluice.toml:2: limits[0]: rule topic:a: break_s 2.0 is longer than burst_s 1.0")
    (line,) = lines("[defaults.topic]\nrate = 1e12\n", write=write)
    assert line.startswith("sluice.toml:1: defaults.topic: rule topic:*: rate_per_s ")


def test_a_rule_of_an_unknown_kind_is_an_error(write: Write) -> None:
    text = '[[limits]]\nkind = "topics"\nname = "a"\nrate = 1\n[defaults.queue]\nrate = 1\n'
    assert lines(text, write=write) == [
        'sluice.toml:2: limits[0].kind = "topics": unknown; did you mean "topic"?',
        "sluice.toml:5: defaults.queue: unknown; allowed here: retry_group, topic",
    ]


def test_two_rules_of_one_name_are_named_with_their_places(write: Write) -> None:
    text = '[[limits]]\nkind = "topic"\nname = "*"\nrate = 1\n[defaults.topic]\nrate = 2\n'
    (line,) = lines(text, write=write)
    assert line.startswith("two rules for topic:*: ")
    assert "(sluice.toml:1)" in line
    assert "(sluice.toml:5)" in line


def test_listeners_get_their_protocol_and_its_options(write: Write) -> None:
    text = '[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\ntls = "pass"\noptions.max_frame_bytes = 99\n'
    planned = plan(text, Flags(), write)
    assert planned.listeners[0].options == RocketMQOptions(tls="pass", max_frame_bytes=99)
    config = planned.data_path_config().listeners[0]
    assert (config.name, config.listen, config.broker, config.scope) == ("a:1", ("a", 1), ("b", 1), "default")


def test_a_wrong_option_of_a_protocol_names_its_line(write: Write) -> None:
    text = '[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\n[listeners.options]\nmax_frame = 99\n'
    assert lines(text, Flags(), write) == [
        'sluice.toml:5: listeners[0].options.max_frame: unknown; did you mean "max_frame_bytes"?'
    ]


def test_a_bound_that_no_frame_could_keep_is_refused(write: Write) -> None:
    text = '[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\n[listeners.options]\nmax_frame_bytes = 0\n'
    assert lines(text, Flags(), write) == [
        "sluice.toml:5: listeners[0].options.max_frame_bytes = 0: must be at least 8"
    ]


def test_an_unknown_protocol_names_where_it_was_given() -> None:
    given = Flags(listen=PAIR.listen, broker=PAIR.broker, protocol="rocketmp")
    assert lines(flags=given) == ['--protocol rocketmp: protocol unknown; did you mean "rocketmq"?']


def test_listeners_of_one_name_are_refused(write: Write) -> None:
    text = "".join(f'[[listeners]]\nname = "x"\nlisten = "a:{port}"\nbroker = "b:1"\n' for port in (1, 2))
    assert lines(text, Flags(), write) == [
        'sluice.toml:6: listeners[1].name = "x": used by another listener too; choose another'
    ]


def test_handlers_get_their_settings_and_stand_in_order(write: Write) -> None:
    text = '[[handlers]]\nname = "rate_limit"\nlane = "inline"\nlanes = 2\ncapacity = 3\ndeadline_ms = 4\n'
    (handler,) = plan(text, write=write).handlers
    assert (handler.plugin.name, handler.lane, handler.lanes, handler.capacity, handler.deadline_ms) == (
        "rate_limit",
        "inline",
        2,
        3,
        4,
    )


def test_a_handler_that_stands_twice_or_is_unknown_is_refused(write: Write) -> None:
    text = '[[handlers]]\nname = "rate_limit"\n' * 2 + '[[handlers]]\nname = "rate_limmit"\n'
    assert lines(text, write=write) == [
        'sluice.toml:4: handlers[1].name = "rate_limit": stands in the pipeline twice; remove one',
        'sluice.toml:6: handlers[2].name = "rate_limmit": handler unknown; did you mean "rate_limit"?',
    ]


def test_a_pipeline_without_the_rate_limiter_is_warned_about(write: Write) -> None:
    assert plan("handlers = []\n", write=write).warnings() == [
        'handlers: no "rate_limit" among them: nothing is limited'
    ]


def test_a_plan_without_listeners_is_warned_about() -> None:
    (warning,) = plan(flags=Flags()).warnings()
    assert warning.startswith("no listener: ")


def pairs(*each: tuple[str, str]) -> Flags:
    return Flags(listen=[listen for listen, _ in each], broker=[broker for _, broker in each])


@pytest.mark.parametrize(
    ("listen", "broker"),
    [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("0.0.0.0:7", "127.0.0.1:7"),
        ("*:7", "localhost:7"),
        ("[::]:7", "[::1]:7"),
        ("localhost:7", "127.0.0.1:7"),
    ],
)
def test_a_listener_that_is_its_own_broker_is_refused(listen: str, broker: str) -> None:
    (line,) = lines(flags=pairs((listen, broker)))
    assert line == (
        f"--broker {broker}: is where Sluice itself listens (--listen {listen}), so it would connect to itself"
        " without end; name the broker's own address"
    )


def test_listeners_that_are_each_others_brokers_are_refused() -> None:
    found = lines(flags=pairs(("127.0.0.1:7", "127.0.0.1:8"), ("127.0.0.1:8", "127.0.0.1:7")))
    assert [line.split(",")[0] for line in found] == [
        "--broker 127.0.0.1:8: is where Sluice itself listens (--listen 127.0.0.1:8)",
        "--broker 127.0.0.1:7: is where Sluice itself listens (--listen 127.0.0.1:7)",
    ]


def test_a_broker_that_is_a_listener_of_the_file_names_both_lines(write: Write) -> None:
    (line,) = lines('[[listeners]]\nlisten = "127.0.0.1:7"\nbroker = "127.0.0.1:7"\n', Flags(), write)
    assert line.startswith(
        'sluice.toml:3: listeners[0].broker = "127.0.0.1:7": is where Sluice itself listens'
        ' (listeners[0].listen = "127.0.0.1:7" (sluice.toml:2)), '
    )


def test_two_listeners_of_one_address_are_refused(write: Write) -> None:
    text = "".join(
        f'[[listeners]]\nname = "{name}"\nlisten = "{host}:7"\nbroker = "b:1"\n'
        for name, host in (("x", "0.0.0.0"), ("y", "127.0.0.1"))
    )
    (line,) = lines(text, Flags(), write)
    assert line == (
        'sluice.toml:7: listeners[1].listen = "127.0.0.1:7": is taken by listeners[0].listen = "0.0.0.0:7"'
        " (sluice.toml:3); choose another address"
    )


def test_an_admin_address_that_is_a_listeners_is_refused() -> None:
    assert lines(flags=pairs(("127.0.0.1:7", "b:7")), SLUICE_ADMIN="localhost:7") == [
        "SLUICE_ADMIN=localhost:7: is taken by --listen 127.0.0.1:7; choose another address"
    ]


def test_an_admin_address_open_to_all_is_warned_about() -> None:
    (warning,) = plan(SLUICE_ADMIN="0.0.0.0:9870").warnings()
    assert warning.startswith("admin 0.0.0.0:9870: open to every network")


def test_rules_can_be_checked_before_there_is_a_listener() -> None:
    planned = plan(flags=Flags(limits=["topic:a=1/s"]))
    assert not planned.listeners
    assert rate(planned, "topic", "a") == (1, "--limit")


def test_bounds_reach_the_data_path() -> None:
    config = plan(SLUICE_BOUNDS_MAX_CONNECTIONS="3", SLUICE_BOUNDS_BUFFER_BUDGET_BYTES="2000000").data_path_config()
    assert (config.max_connections, config.buffer_budget_bytes) == (3, 2_000_000)
