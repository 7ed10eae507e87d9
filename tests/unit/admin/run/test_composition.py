from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest
from certificates import Certificates

from admin.common.errors import SettingsError
from admin.config.sources import Flags, load
from admin.run.composition import Plan, compose
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from proxy.datapath.alarm_watch import AlarmConfig
from proxy.datapath.spooling import SpoolConfig
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.spool.spool import SpoolSettings

Write = Callable[[str], str]
PAIR = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])
_LISTENER = '[[listeners]]\nlisten = "127.0.0.1:1"\nbroker = "127.0.0.1:2"\n'


def plan(text: str | None = None, flags: Flags = PAIR, write: Write | None = None, **environ: str) -> Plan:
    file = write(text) if write is not None and text is not None else None
    return compose(load(file, environ, flags))


def lines(text: str | None = None, flags: Flags = PAIR, write: Write | None = None, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        plan(text, flags, write, **environ)
    return list(caught.value.lines)


def test_listeners_get_their_protocol_and_its_options(write: Write) -> None:
    text = '[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\ntls = "pass"\noptions.max_frame_bytes = 99\n'
    planned = plan(text, Flags(), write)
    assert planned.listeners[0].options == RocketMQOptions(tls="pass", max_frame_bytes=99)
    config = planned.data_path_config().listeners[0]
    assert (config.name, config.listen, config.broker, config.scope) == ("a:1", ("a", 1), ("b", 1), "default")


def test_the_data_path_gets_the_settings_of_listeners_handlers_and_bounds(write: Write) -> None:
    text = (
        'backup_brokers = ["127.0.0.1:9"]\nexempt = ["10.0.0.0/8", "::1"]\nmax_connections_per_client = 5\n'
        'new_connections_per_s = 2.5\nproxy_protocol_from = ["10.0.0.0/8"]\nsend_proxy_protocol = "v2"\n'
        "handshake_timeout_s = 1.0\nframe_timeout_s = 2.0\nidle_timeout_s = 3.0\nwrite_timeout_s = 4.0\n"
        '[[handlers]]\nname = "rate_limit"\nlane = "inline"\nlanes = 2\ncapacity = 3\ndeadline_ms = 4\n'
        "[bounds]\nmax_connections = 7\nmax_live_limiters = 8\nmax_resource_labels = 9\nbuffer_budget_bytes = 1048576\n"
        "[rejection_log]\nmax_keys_per_s = 10\nmax_resources = 11\n"
    )
    config = plan(_LISTENER + text, Flags(), write).data_path_config()
    (listener,), (handler,) = config.listeners, config.handlers
    networks = (ip_network("10.0.0.0/8"),)
    assert (listener.backup_brokers, listener.exempt) == ((("127.0.0.1", 9),), (*networks, ip_network("::1/128")))
    assert (listener.max_connections_per_client, listener.new_connections_per_s) == (5, 2.5)
    assert (listener.proxy_protocol_from, listener.send_proxy_protocol, listener.broker_tls) == (networks, "v2", None)
    timeouts = (listener.handshake_timeout_s, listener.frame_timeout_s, listener.idle_timeout_s)
    assert (*timeouts, listener.write_timeout_s) == (1, 2, 3, 4)
    assert (handler.plugin.name, handler.lane) == ("rate_limit", "inline")
    assert (handler.lanes, handler.capacity, handler.deadline_ms) == (2, 3, 4)
    assert (config.max_connections, config.max_live_limiters, config.max_resource_labels) == (7, 8, 9)
    assert (config.buffer_budget_bytes, config.max_keys_per_s, config.max_resources) == (1_048_576, 10, 11)


def test_a_wrong_option_of_a_protocol_names_its_line(write: Write) -> None:
    text = '[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\n[listeners.options]\nmax_frame = 99\n'
    assert lines(text, Flags(), write) == [
        'sluice.toml:5: listeners[0].options.max_frame: unknown; did you mean "max_frame_bytes"?'
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rocketmp", "rocketmq"), ("rocketmq5", "rocketmq-grpc"), ("RocketMQ_gRPC", "rocketmq-grpc")],
)
def test_an_unknown_protocol_names_where_it_was_given(name: str, meant: str) -> None:
    given = Flags(listen=PAIR.listen, broker=PAIR.broker, protocol=name)
    assert lines(flags=given) == [f'--protocol {name}: the protocol is unknown; did you mean "{meant}"?']


def test_listeners_of_one_name_are_refused(write: Write) -> None:
    text = "".join(f'[[listeners]]\nname = "x"\nlisten = "a:{port}"\nbroker = "b:1"\n' for port in (1, 2))
    assert lines(text, Flags(), write) == [
        'sluice.toml:6: listeners[1].name = "x": already the name of another listener; choose another name'
    ]


def test_a_duplicate_or_unknown_handler_is_refused(write: Write) -> None:
    text = '[[handlers]]\nname = "rate_limit"\n' * 2 + '[[handlers]]\nname = "rate_limmit"\n'
    assert lines(text, write=write) == [
        'sluice.toml:4: handlers[1].name = "rate_limit": listed twice; remove one',
        'sluice.toml:6: handlers[2].name = "rate_limmit": the handler is unknown; did you mean "rate_limit"?',
    ]


def test_a_pipeline_without_the_rate_limiter_is_warned_about(write: Write) -> None:
    told = plan("handlers = []\n", write=write).warnings()
    assert told == ['handlers: "rate_limit" is not listed, so nothing is limited']


def pairs(*each: tuple[str, str]) -> Flags:
    return Flags(listen=[listen for listen, _ in each], broker=[broker for _, broker in each])


def test_a_backup_that_is_sluice_itself_or_listed_twice_is_refused(write: Write) -> None:
    text = _LISTENER + 'backup_brokers = ["127.0.0.1:9", "127.0.0.1:1", "127.0.0.1:2"]\n'
    itself, twice = lines(text, Flags(), write)
    assert itself.startswith('sluice.toml:4: listeners[0].backup_brokers[1] = "127.0.0.1:1": Sluice itself listens')
    assert twice == 'sluice.toml:4: listeners[0].backup_brokers[2] = "127.0.0.1:2": listed twice; remove one'


@pytest.mark.parametrize(
    ("listen", "broker"),
    [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("*:7", "localhost:7"),
        ("localhost:7", "127.0.0.1:7"),
    ],
)
def test_a_listener_that_is_its_own_broker_is_refused(listen: str, broker: str) -> None:
    (line,) = lines(flags=pairs((listen, broker)))
    assert line == (
        f"--broker {broker}: Sluice itself listens on this address (--listen {listen}), so it would connect to itself;"
        " give the broker's address"
    )


def test_two_listeners_of_one_address_are_refused(write: Write) -> None:
    text = "".join(
        f'[[listeners]]\nname = "{name}"\nlisten = "{host}:7"\nbroker = "b:1"\n'
        for name, host in (("x", "0.0.0.0"), ("y", "127.0.0.1"))
    )
    (line,) = lines(text, Flags(), write)
    assert line == (
        'sluice.toml:7: listeners[1].listen = "127.0.0.1:7": already used by listeners[0].listen = "0.0.0.0:7"'
        " (sluice.toml:3); choose another address"
    )


def test_an_admin_address_that_is_a_listeners_is_refused() -> None:
    assert lines(flags=pairs(("127.0.0.1:7", "b:7")), SLUICE_ADMIN="localhost:7") == [
        "SLUICE_ADMIN=localhost:7: already used by --listen 127.0.0.1:7; choose another address"
    ]


def test_rules_can_be_checked_before_there_is_a_listener() -> None:
    planned = plan(flags=Flags(limits=["topic:a=1/s"]))
    assert not planned.listeners
    assert planned.rule_set.match(Resource("topic", "a")).rate_per_s == 1


def test_spool_and_alarms_reach_the_data_path(tmp_path: Path) -> None:
    planned = plan(
        SLUICE_SPOOL_MEMORY_BYTES="2000000",
        SLUICE_SPOOL_MAX_AGE_S="9",
        SLUICE_SPOOL_RECOVER="true",
        SLUICE_ALARMS_MEMORY_HIGH_WATERMARK="0.5",
        SLUICE_ALARMS_DISK_FREE_BYTES="1000",
    )
    assert planned.data_path_config().spool is None
    config = planned.data_path_config(tmp_path, spool_required=True)
    settings = SpoolSettings(memory_bytes=2_000_000, min_free_bytes=500, max_age_s=9)
    assert config.spool == SpoolConfig(tmp_path, settings, recover=True, required=True)
    assert config.alarms == AlarmConfig(0.5, 1000)


def test_faults_of_listeners_and_handlers_come_before_those_of_rules(write: Write) -> None:
    text = (
        '[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\nprotocol = "x"\n[[handlers]]\nname = "rate_limitt"\n'
        '[[limits]]\nkind = "topik"\nname = "a"\nrate = 5\n'
    )
    assert [line.split(" ")[1] for line in lines(text, Flags(), write)] == ["listeners[0].protocol", "handlers[0].name"]


def with_tls(made: Certificates, *more: str) -> str:
    return "\n".join(
        (
            f'{_LISTENER}tls = "require"',
            f'tls_certificate_file = "{made.path("server.pem")}"',
            f'tls_key_file = "{made.path("server.key")}"',
            *more,
        )
    )


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    certificates = Certificates(tmp_path)
    certificates.issue("server", "127.0.0.1")
    return certificates


def test_listeners_get_their_tls_hidden_from_the_protocol(write: Write, made: Certificates) -> None:
    more = ("broker_tls = true", f'broker_tls_ca_file = "{made.path("ca.pem")}"')
    planned = plan(with_tls(made, *more), Flags(), write)
    (listener,) = planned.data_path_config().listeners
    assert listener.client_tls is not None
    assert listener.client_tls.required
    assert listener.broker_tls is not None
    assert planned.listeners[0].options == RocketMQOptions()
    assert planned.warnings() == []
    assert {made.path(name) for name in ("server.pem", "server.key", "ca.pem")} < set(planned.files)


def test_a_broker_that_is_not_verified_is_warned_of(write: Write) -> None:
    (warning,) = plan(f"{_LISTENER}broker_tls = true\nbroker_tls_verify = false\n", Flags(), write).warnings()
    assert warning.startswith("listener 127.0.0.1:1: broker_tls_verify = false: anyone between Sluice and the broker")


@pytest.mark.parametrize(("protocol", "warned"), [("rocketmq", False), ("amqp", True), ("amqp091", True)])
def test_logins_by_certificates_that_the_broker_does_not_see_are_warned_of(
    write: Write, made: Certificates, protocol: str, *, warned: bool
) -> None:
    text = with_tls(made, f'protocol = "{protocol}"', f'tls_client_ca_file = "{made.path("ca.pem")}"')
    warnings = plan(text, Flags(), write).warnings()
    assert any("SASL EXTERNAL" in warning for warning in warnings) is warned


# --- fleets

_FLEET = '[fleet]\nname = "f"\nurl = "redis://10.0.0.1"\n'
_IN_FLEET = '[[limits]]\nkind = "topic"\nname = "a"\nrate = 5\nfleet = true\n'


def test_the_data_path_gets_the_fleet(write: Write, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush", encoding="utf-8")
    text = _FLEET.replace("redis://10.0.0.1", "sentinel://10.0.0.1,s:7/main")
    text += f'user = "u"\npassword_file = "{tmp_path / "password"}"\nwhen_away = "equal"\nmember = "m"\n'
    planned = plan(text + _IN_FLEET, write=write)
    config = planned.data_path_config().fleet
    assert config is not None
    assert (config.name, config.member, config.when_away, config.user) == ("f", "m", "equal", "u")
    assert (config.kind, config.nodes, config.service) == ("sentinel", (("10.0.0.1", 26379), ("s", 7)), "main")
    assert (config.password, config.password_file, config.tls) == ("", str(tmp_path / "password"), None)
    assert rule_of(planned).fleet
    assert planned.warnings() == ["fleet: the password is sent unencrypted; use TLS (rediss:// in fleet.url)"]
    assert plan().data_path_config().fleet is None


def rule_of(planned: Plan) -> Rule:
    return planned.rule_set.match(Resource("topic", "a"))


def test_a_fleet_by_tls_has_its_files(write: Write, made: Certificates) -> None:
    text = _FLEET.replace("redis:", "rediss:") + _IN_FLEET.replace("[[", f'ca_file = "{made.path("ca.pem")}"\n[[', 1)
    config = plan(text, write=write, SLUICE_FLEET_PASSWORD="hush").data_path_config().fleet
    assert config is not None
    assert config.tls is not None
    assert (config.password, "hush" in repr(config), config.nodes) == ("hush", False, (("10.0.0.1", 6379),))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            _IN_FLEET,
            "5: limits[0].fleet: rule topic:a: fleet = true requires [fleet] in the configuration; allowed: fleet =",
        ),
        (_FLEET.replace("redis", "http"), "3: fleet.url: must be a URL such as "),
        (_FLEET.replace("//", "//u:hush@"), "3: fleet.url: must not contain a user or password; set fleet.user and"),
        (_FLEET.replace("10.0.0.1", "10.0.0.1,10.0.0.2"), "3: fleet.url: must contain a single server"),
        (_FLEET.replace("redis", "sentinel"), "3: fleet.url: must end with the service name"),
        (_FLEET.replace("redis", "cluster").replace(".1", ".1/2"), "3: fleet.url: must not select a database"),
        (_FLEET.replace(".1", ".1/x"), "3: fleet.url: must end with a database number"),
        (_FLEET.replace('"f"', '"a b"'), '2: fleet.name = "a b": must not contain spaces or braces'),
        (_FLEET + 'ca_file = "x"', '4: fleet.ca_file = "x": has no effect without TLS'),
        (_FLEET.replace("redis", "rediss") + 'ca_file = "/x"', '4: fleet.ca_file = "/x": cannot be read'),
        (
            _FLEET.replace("redis", "rediss") + 'key_file = "/x"',
            '4: fleet.key_file = "/x": certificate_file and key_fil',
        ),
        (_FLEET + 'password_file = "/x"', '4: fleet.password_file = "/x": cannot be read: no such file or directory'),
        ('[fleet]\nname = "f"\n', "fleet.url: missing, but required"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_without_its_secrets(write: Write, text: str, line: str) -> None:
    (told,) = lines(text, write=write)
    assert line in told
    assert "hush" not in told


def test_one_password_is_enough(write: Write, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush", encoding="utf-8")
    text = _FLEET + f'password_file = "{tmp_path / "password"}"\n'
    (told,) = lines(text, write=write, SLUICE_FLEET_PASSWORD="hush-2")
    assert told.endswith("cannot be combined with fleet.password (SLUICE_FLEET_PASSWORD); remove one of them")


def test_a_fleet_without_a_limit_is_warned_of(write: Write) -> None:
    (told,) = [line for line in plan(_FLEET, write=write).warnings() if "fleet" in line]
    assert told.endswith("fleet: has no effect: no limit has fleet = true")
