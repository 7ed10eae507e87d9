import dataclasses
from collections.abc import Callable

import pytest

from admin.common.errors import SettingsError
from admin.config import plugins
from admin.config.rule_fields import FieldError, RuleReader, fields_of, longest_delay_s, patched, target_of, written
from admin.config.rulebook import build
from admin.config.sources import Flags, load
from admin.run.composition import Plan, compose
from limiter.rules.resource import SCOPES, Resource
from limiter.rules.rule import Rule
from proxy.protocols.base import Kind

Write = Callable[[str], str]
PAIR = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])
FORM = "KIND:NAME=RATE/s (messages per second), KIND:NAME=0/s or KIND:NAME=unlimited, e.g. topic:orders=500/s"
KINDS = "certificate, client, listener, producer_group, retry_group, subscription, topic, transaction"
TOPIC = '[[limits]]\nkind = "topic"\nname = "a"\n'


def plan(text: str | None = None, flags: Flags = PAIR, write: Write | None = None, **environ: str) -> Plan:
    file = write(text) if write is not None and text is not None else None
    return compose(load(file, environ, flags))


def lines(text: str | None = None, flags: Flags = PAIR, write: Write | None = None, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        plan(text, flags, write, **environ)
    return list(caught.value.lines)


def limits(*texts: str) -> Flags:
    return Flags(listen=PAIR.listen, broker=PAIR.broker, limits=texts)


def rule(planned: Plan, kind: str, name: str) -> Rule:
    return planned.rule_set.match(Resource(kind, name))


def rate(planned: Plan, kind: str, name: str) -> tuple[float | None, str]:
    found = rule(planned, kind, name)
    return found.rate_per_s, found.source


# --- precedence


def test_without_any_limit_the_protocols_own_hold() -> None:
    planned = plan()
    assert rate(planned, "topic", "orders") == (2000, "built-in")
    assert rate(planned, "retry_group", "billing") == (100, "built-in")
    assert rate(planned, "topic", "x_REPLY_TOPIC") == (None, "built-in")


def test_replies_and_the_clusters_own_are_exempt_unless_a_rule_has_that_very_name() -> None:
    for planned in (plan(), plan(flags=limits("topic:*=1/s", "topic:RMQ_*=1/s"))):
        assert rule(planned, "topic", "x_REPLY_TOPIC").exempt
        assert rule(planned, "topic", "RMQ_SYS_TRACE_TOPIC").exempt
    assert not rule(plan(flags=limits("topic:*_REPLY_TOPIC=1/s")), "topic", "x_REPLY_TOPIC").exempt


def test_exempt_replaces_a_rate(write: Write) -> None:
    assert rule(plan(TOPIC + "exempt = true", write=write), "topic", "a").exempt
    assert lines(TOPIC + "rate = 5\nexempt = true", write=write) == [
        (
            "sluice.toml:5: limits[0].exempt: rule topic:a: exempt cannot be combined with a limit;"
            " allowed: only one of them"
        )
    ]


def test_a_flags_rule_wins_over_the_environments_and_that_over_the_files(write: Write) -> None:
    text = "".join(f'[[limits]]\nkind = "topic"\nname = "{name}"\nrate = 1\n' for name in "abc")
    planned = plan(text, limits("topic:c=3/s"), write, SLUICE_LIMIT="topic:b=2/s topic:c=2/s")
    assert rate(planned, "topic", "a") == (1, "sluice.toml:1")
    assert rate(planned, "topic", "b") == (2, "SLUICE_LIMIT")
    assert rate(planned, "topic", "c") == (3, "--limit")


def test_defaults_of_the_file_replace_built_in_ones(write: Write) -> None:
    planned = plan("[defaults.topic]\nrate = 7\nburst_s = 3\nbreak_s = 0\n", write=write)
    found = rule(planned, "topic", "orders")
    assert (found.rate_per_s, found.burst_s, found.break_s, found.source) == (7, 3, 0, "sluice.toml:1")
    assert rate(planned, "retry_group", "x") == (None, "default")


@pytest.mark.parametrize("written", ["file", "default", "flag", "built-in"])
def test_missing_fields_get_the_defaults_of_their_kind(write: Write, written: str) -> None:
    plans: dict[str, Callable[[], Plan]] = {
        "file": lambda: plan('[[limits]]\nkind = "retry_group"\nname = "*"\nrate = 1\n', write=write),
        "default": lambda: plan("[defaults.retry_group]\nrate = 1\n", write=write),
        "flag": lambda: plan(flags=limits("retry_group:*=1/s")),
        "built-in": plan,
    }
    found = rule(plans[written](), "retry_group", "x")
    assert (found.action, found.max_delay_s, found.break_in_force_s) == ("delay", 2, 0)


def test_spooled_requests_may_wait_an_hour_where_clients_do(write: Write) -> None:
    waits = Kind("queue", "what is published to a queue")
    assert longest_delay_s(waits, action="delay", spool=True) == 3600
    assert longest_delay_s(waits, action="delay", spool=None) == 2

    def longest(kind: str, fields: str) -> float:
        return rule(plan(f"[defaults.{kind}]\nrate = 1\n{fields}", write=write), kind, "x").max_delay_s

    assert longest("retry_group", "spool = true") == 2
    assert longest("topic", 'action = "delay"\nspool = true') == 2
    assert longest("topic", 'action = "delay"\nspool = true\nmax_delay_s = 9') == 9
    assert longest("topic", 'action = "delay"\nspool = false') == 2
    # Neither is ever spooled.
    assert longest("topic", "spool = true") == 2
    assert longest("subscription", "spool = true") == 10


def test_a_scope_of_no_used_protocol_is_refused_with_a_reason() -> None:
    there_are = f"allowed here: {KINDS}"
    assert lines(flags=limits("user:alice=1/s", "vhost:/=1/s")) == [
        f"--limit '{kind}:{name}=1/s': kind '{kind}' is unknown; rocketmq does not support \"{kind}\"; {there_are}"
        for kind, name in (("user", "alice"), ("vhost", "/"))
    ]
    with pytest.raises(FieldError, match='rocketmq does not support "user"; must be one of certificate, client, '):
        plan().rulebook.reader.target("user", "alice")


def test_a_protocol_defines_the_scopes() -> None:
    protocol = plugins.protocol("rocketmq", (), load(None, {}, PAIR).origins)
    logged_in = dataclasses.replace(
        protocol, name="other", kinds=(Kind("queue", ""),), default_rules=(), scopes=("user", "vhost")
    )
    texts = limits("user:alice=1/s", "vhost:/=2/s", "queue:a=3/s", "client:*=4/s")
    rules = build(load(None, {}, texts), (logged_in,), ()).rule_set().rules
    assert [rule.name for rule in rules] == ["user:alice", "vhost:/", "queue:a", "client:*"]
    assert [*RuleReader((logged_in,), ()).kinds] == ["queue", "client", "certificate", "user", "vhost", "listener"]
    assert [*RuleReader((protocol, logged_in), ()).kinds][-6:] == list(SCOPES)
    # With two protocols, each kind has its own scopes.
    reader = RuleReader((protocol, logged_in), ())
    assert reader.read("queue", "a", {"rate": 1, "fair_by": "user"}, "an edit").fair_by == "user"
    for kind, word in (("topic", "user"), ("queue", "producer_group")):
        with pytest.raises(FieldError, match=f'not support "{word}"'):
            reader.read(kind, "a", {"rate": 1, "fair_by": word}, "an edit")


SPOKEN_BOTH = (
    ["amqp"],
    ["amqp091", "amqp10"],
    ["amqp10", "amqp091"],
    ["amqp", "amqp10"],
    ["amqp10", "amqp"],
    ["amqp091", "amqp"],
)


@pytest.mark.parametrize(
    ("names", "kind", "action"),
    [
        (["rocketmq"], "topic", "reject"),
        (["rocketmq"], "retry_group", "delay"),
        (["amqp091"], "queue", "reject"),
        (["amqp091"], "user", "reject"),
        (["amqp10"], "queue", "delay"),
        (["amqp10"], "user", "delay"),
        *(
            ([*names], kind, "default")
            for names in SPOKEN_BOTH
            for kind in ("queue", "exchange", "routing_key", "user")
        ),
        *(([*names], "delivery", "delay") for names in SPOKEN_BOTH),
        (["rocketmq", "amqp10"], "topic", "reject"),
        (["rocketmq", "amqp10"], "queue", "delay"),
        (["rocketmq", "amqp10"], "client", "default"),
        (["rocketmq", "amqp091"], "client", "reject"),
    ],
)
def test_without_an_action_each_connection_gets_the_default_of_its_protocol(
    names: list[str], kind: str, action: str
) -> None:
    origins = load(None, {}, PAIR).origins
    reader = RuleReader([plugins.protocol(name, (), origins) for name in names], ())
    found = reader.read(kind, "*", {"rate": 1}, "an edit")
    assert found.shown_action == action
    # An edit of another field leaves it unchanged.
    again = reader.read(kind, "*", patched(fields_of(found), {"rate": 2}), "an edit")
    assert again.shown_action == action
    assert reader.read(kind, "*", {"rate": 1, "action": "shadow"}, "an edit").shown_action == "shadow"


@pytest.mark.parametrize(("max_delay_s", "after"), [({}, 2), ({"max_delay_s": 20}, 20)])
def test_a_patch_of_the_spool_changes_the_longest_delay_only_if_it_is_the_default(
    max_delay_s: dict[str, float], after: float
) -> None:
    reader = RuleReader([plugins.protocol("amqp091", (), load(None, {}, PAIR).origins)], ())
    spooled = reader.read("queue", "q", {"rate": 1, "action": "delay", "spool": True, **max_delay_s}, "an edit")
    base = reader.base(target_of(spooled), fields_of(spooled))
    assert reader.read("queue", "q", patched(base, {"spool": False}), "an edit").max_delay_s == after


def test_a_break_without_an_action_is_refused_where_senders_wait_for_credit() -> None:
    reader = RuleReader([plugins.protocol("amqp", (), load(None, {}, PAIR).origins)], ())
    with pytest.raises(FieldError, match=r"the default action of AMQP 1\.0 \(wait for credit\), which has no"):
        reader.read("queue", "*", {"rate": 1, "break_s": 1}, "an edit")
    assert reader.read("queue", "*", {"rate": 1, "break_s": 1, "action": "reject"}, "an edit").break_s == 1


@pytest.mark.parametrize("name", ["amqp", "amqp091"])
def test_consumers_confirm_under_a_rule_without_a_rate(name: str) -> None:
    reader = RuleReader([plugins.protocol(name, (), load(None, {}, PAIR).origins)], ())
    says = {"confirm": "after_consume", "confirm_queues": 3, "fallback": "nack", "confirm_within_s": 1}
    found = reader.read("exchange", "*", says, "an edit")
    assert (found.confirms_after_consume, found.rate_per_s, found.confirm_queues) == (True, None, 3)
    # Under amqp each connection gets the default of its version, so no action is written.
    action = {} if name == "amqp" else {"action": "reject"}
    assert written(fields_of(found)) == {"rate": "unlimited", **action, **says, "max_delay_s": 2.0}
    with pytest.raises(
        FieldError, match=r"1, or no confirm_queues \(larger numbers require a rule of kind exchange\)"
    ) as error:
        reader.read("queue", "orders", says, "an edit")
    assert error.value.problems[0][0] == "confirm_queues"


@pytest.mark.parametrize(
    ("names", "kind", "why"),
    [
        (["rocketmq"], "topic", "not supported by rocketmq; allowed: broker"),
        (["amqp10"], "queue", "not supported by amqp10; allowed: broker"),
        (
            ["amqp091"],
            "routing_key",
            "not supported by amqp091 for a routing key; allowed: .* of kind queue or exchange",
        ),
        (
            ["amqp10", "amqp091"],
            "delivery",
            "not supported by amqp10 and amqp091 for a delivery; allowed: after_consume",
        ),
        (["amqp091"], "user", "not to scopes or totals"),
        (["amqp091"], "total", "not to scopes or totals"),
    ],
)
def test_consumers_confirm_only_where_the_protocol_supports_it(names: list[str], kind: str, why: str) -> None:
    reader = RuleReader([plugins.protocol(name, (), load(None, {}, PAIR).origins) for name in names], ())
    with pytest.raises(FieldError, match=why) as error:
        reader.read(kind, "queue:*" if kind == "total" else "*", {"rate": 1, "confirm": "after_consume"}, "an edit")
    assert [field for field, _ in error.value.problems] == ["confirm"]
    if names == ["amqp10", "amqp091"]:
        assert reader.read("queue", "*", {"confirm": "after_consume"}, "an edit").confirms_after_consume


# --- errors


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        ("topic:orders=500", f"--limit 'topic:orders=500': the rate needs a unit: 500/s; allowed: {FORM}"),
        ("tpoic:orders=5/s", "--limit 'tpoic:orders=5/s': kind 'tpoic' is unknown; did you mean \"topic\"?"),
    ],
)
def test_a_bad_limit_of_the_command_line_is_one_line(limit: str, line: str) -> None:
    assert lines(flags=limits(limit)) == [line]


def test_a_rule_of_an_unknown_kind_is_an_error(write: Write) -> None:
    of = "only by amqp, amqp091, amqp10; check the listener's protocol."
    text = '[[limits]]\nkind = "topics"\nname = "a"\nrate = 1\n[defaults.queue]\nrate = 1\n'
    assert lines(text, write=write) == [
        'sluice.toml:2: limits[0].kind = "topics": unknown; did you mean "topic"?',
        f"sluice.toml:5: defaults.queue: not supported by rocketmq, {of} Allowed here: {KINDS}",
    ]


def test_two_rules_of_one_name_are_named_with_their_places(write: Write) -> None:
    text = '[[limits]]\nkind = "topic"\nname = "*"\nrate = 1\n[defaults.topic]\nrate = 2\n'
    (line,) = lines(text, write=write)
    assert line == (
        "sluice.toml:5: duplicate rule for topic:*: topic:*=2/s; the other is topic:*=1/s (sluice.toml:1);"
        " remove one of them"
    )


def test_faulty_rules_of_all_sources_are_named_at_once(write: Write) -> None:
    text = '[[limits]]\nkind = "topics"\nname = "b"\nrate = 1\n'
    text += f"{TOPIC}rate = 1e12\n{TOPIC}rate = 1\n{TOPIC}rate = 2\n"
    found = lines(text, write=write, flags=limits("topic:x"))
    assert [line.split(" ")[0] for line in found] == ["sluice.toml:2:", "sluice.toml:8:", "sluice.toml:13:", "--limit"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            TOPIC + "rate = 1\nbreak_s = 2",
            (
                "5: limits[0].break_s: rule topic:a: break_s 2 is longer than burst_s 1.0, so clients would get less"
                " than the limit; allowed: 0 to 1.0, or allow_under_limit = true"
            ),
        ),
        (
            "[defaults.topic]\nrate = 1e12",
            (
                "2: defaults.topic.rate: rule topic:*: invalid rate 1000000000000.0; allowed: 0 to 1000000000"
                " messages per second, or unlimited"
            ),
        ),
        (
            TOPIC + "rate = 1\nshared = true",
            "5: limits[0].shared: rule total:topic:a: a shared rule must match more than one name; allowed: a pattern",
        ),
        (
            TOPIC + "rate = 1\nbetween = '9-17'",
            "5: limits[0].between: invalid between '9-17'; allowed: HH:MM-HH:MM, for example 09:00-18:00",
        ),
        (
            TOPIC + "rate = 1\ndays = ['mon']\ntime_zone = 'Berlin'",
            '6: limits[0].time_zone: unknown time_zone \'Berlin\'; allowed: a name like "Europe/Berlin", or "UTC"',
        ),
        (
            '[[limits]]\nkind = "topic"\nname = "a["\nrate = 1',
            (
                "3: limits[0].name: rule pattern 'a[' contains an unclosed [;"
                " allowed: a set such as [abc], or [[] for a literal ["
            ),
        ),
        (
            '[[limits]]\nkind = "client"\nname = "10.1.0.0/8"\nrate = 1',
            "3: limits[0].name: client '10.1.0.0/8' has host bits set; allowed: 10.0.0.0/8",
        ),
        (
            '[[limits]]\nkind = "listener"\nname = "main"\nrate = 1',
            "3: limits[0].name: rule listener:main: no listener has this scope; allowed: default",
        ),
    ],
)
def test_an_impossible_rule_names_line_key_value_and_allowed_values(write: Write, text: str, line: str) -> None:
    assert lines(text, write=write) == [f"sluice.toml:{line}"]


@pytest.mark.parametrize(
    ("word", "meant"), [("consumer_group", '"subscription" or "retry_group"'), ("address", '"client"')]
)
def test_a_kind_by_another_word_gets_the_right_ones(write: Write, word: str, meant: str) -> None:
    text = f'[[limits]]\nkind = "{word}"\nname = "a"\nrate = 1\n'
    assert lines(text, write=write) == [f'sluice.toml:2: limits[0].kind = "{word}": unknown; did you mean {meant}?']


@pytest.mark.parametrize("names", [["rocketmq"], ["amqp"], ["amqp10"], ["rocketmq", "amqp10"]])
def test_an_adaptive_limit_refuses_whatever_the_protocol_does_by_itself(names: list[str]) -> None:
    origins = load(None, {}, PAIR).origins
    reader = RuleReader([plugins.protocol(name, (), origins) for name in names], ())
    found = reader.read("listener", "*", {"adaptive": True, "floor": 200, "ceiling": 900}, "an edit")
    assert (found.action, found.credit_waits) == ("reject", False)
    assert (found.rate_per_s, found.floor_per_s, found.ceiling_per_s) == (None, 200, 900)
    says = {"adaptive": True, "action": "reject", "floor": 200, "ceiling": 900}
    assert says.items() <= written(fields_of(found)).items()
    assert reader.read("listener", "*", fields_of(found), "an edit") == found


def test_an_edit_makes_a_limit_adaptive_and_gives_it_a_rate_again() -> None:
    reader = RuleReader([plugins.protocol("rocketmq", (), load(None, {}, PAIR).origins)], ())
    rate = reader.read("listener", "*", {"rate": 500, "bytes_per_s": 9000, "warm_up_s": 5}, "an edit")
    adaptive = reader.read("listener", "*", patched(fields_of(rate), {"adaptive": True, "floor": 300}), "an edit")
    assert adaptive.limit_text == "adaptive, at least 300/s"
    again = reader.read("listener", "*", patched(fields_of(adaptive), {"rate": 700}), "an edit")
    assert (again.limit_text, again.floor_per_s) == ("700/s", 100)
    ended = reader.read("listener", "*", patched(fields_of(adaptive), {"adaptive": False}), "an edit")
    assert (ended.limits, ended.floor_per_s) == (False, 100)


def test_names_that_share_an_adaptive_limit_are_of_a_kind_that_the_protocol_has() -> None:
    reader = RuleReader([plugins.protocol("rocketmq", (), load(None, {}, PAIR).origins)], ())
    assert reader.read("listener", "*", {"adaptive": True, "fair_by": "topic"}, "an edit").fair_by == "topic"
    with pytest.raises(FieldError, match=r'rocketmq does not support "queue"; allowed: client, .*topic') as error:
        reader.read("listener", "*", {"adaptive": True, "fair_by": "queue"}, "an edit")
    assert error.value.problems[0][0] == "fair_by"
    assert reader.read("topic", "orders", {"weight": 3}, "an edit").weight == 3
