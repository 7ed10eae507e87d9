from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from admin.common.errors import SettingsError
from admin.config.faults import keys
from admin.config.settings import Endpoint, Settings
from admin.config.sources import Flags, load
from admin.run.composition import compose

Write = Callable[[str], str]


def lines(file: str | None = None, environ: Mapping[str, str] | None = None, flags: Flags | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        compose(load(file, environ or {}, flags or Flags()))
    assert caught.value.exit_code == 2
    return list(caught.value.lines)


def test_flags_win_over_the_environment_and_that_over_the_file(write: Write) -> None:
    file = write('grace_s = 1\n[log]\nlevel = "debug"\nformat = "json"\n[bounds]\nmax_connections = 5\n')
    environ = {"SLUICE_GRACE_S": "2", "SLUICE_LOG_LEVEL": "warning", "SLUICE_URL": "x", "SLUICE_CONFIG": file}
    settings = load(None, environ, Flags(values={("grace_s",): ("--grace-s", 3.0)})).settings
    assert settings.grace_s == 3
    assert settings.log.level == "warning"
    assert settings.log.format == "json"
    assert settings.bounds.max_connections == 5
    assert settings.admin.listen == Endpoint("127.0.0.1", 9870)


def test_pairs_of_flags_and_variables_replace_the_files_listeners(write: Write) -> None:
    file = write('[[listeners]]\nlisten = "a:1"\nbroker = "b:1"\n')
    given = Flags(listen=["c:2", "c:3"])
    listeners = load(file, {"SLUICE_BROKER": "d:2\nd:3", "SLUICE_PROTOCOL": "other"}, given).settings.listeners
    assert [(str(each.listen), str(each.broker), each.protocol) for each in listeners] == [
        ("c:2", "d:2", "other"),
        ("c:3", "d:3", "other"),
    ]


def test_addresses_of_the_file_can_name_variables(write: Write) -> None:
    file = write(
        '[[listeners]]\nlisten = "${POD_IP}:1"\nbroker = "${HOST_A}.${ZONE}:1"\n[admin]\nlisten = "[${POD_IP_6}]:2"\n'
    )
    environ = {"POD_IP": "10.0.0.1", "HOST_A": "a", "ZONE": "local", "POD_IP_6": "2001:db8::1"}
    settings = load(file, environ, Flags()).settings
    assert (str(settings.listeners[0].listen), str(settings.listeners[0].broker)) == ("10.0.0.1:1", "a.local:1")
    assert settings.admin.listen == Endpoint("2001:db8::1", 2)


def test_a_variable_that_is_not_there_is_named_with_its_place(write: Write) -> None:
    file = write('[[listeners]]\nlisten = "${POD_IP}:1"\nbroker = "${A}${B}:1"\n')
    assert lines(file, {"A": ""}) == [
        (
            'sluice.toml:2: listeners[0].listen = "${POD_IP}:1": the environment does not set POD_IP; set it, or write'
            " the address itself"
        ),
        (
            'sluice.toml:3: listeners[0].broker = "${A}${B}:1": the environment does not set A, B; set it, or write the'
            " address itself"
        ),
    ]


@pytest.mark.parametrize(
    "text", ["topic:a=1/s,topic:b=2/s", " topic:a=1/s ,\n topic:b=2/s, ", "topic:a=1/s\ttopic:b=2/s"]
)
def test_limits_of_the_environment_are_separated_by_blanks_or_commas(text: str) -> None:
    configuration = load(None, {"SLUICE_LIMIT": text}, Flags())
    assert [limit.text for limit in configuration.env_limits] == ["topic:a=1/s", "topic:b=2/s"]


def test_two_variables_of_one_key_are_refused() -> None:
    assert lines(None, {"SLUICE_ADMIN": "off", "SLUICE_ADMIN_LISTEN": "127.0.0.1:7"}) == [
        "environment variable SLUICE_ADMIN_LISTEN: sets the same key as SLUICE_ADMIN; set only one of them"
    ]


def test_a_url_is_not_an_address_to_listen_on() -> None:
    (line,) = lines(None, {"SLUICE_ADMIN": "https://10.0.0.5:9870"})
    assert 'must be "host:port", not a URL' in line
    assert line.endswith("`sluice state --admin URL`")


def test_values_replaced_by_the_environment_are_shown_without_tokens(write: Write) -> None:
    file = write('grace_s = 3\n[admin]\ntoken = "a-token-of-the-file-0000000"\nlisten = "127.0.0.1:1"\n')
    environ = {
        "SLUICE_GRACE_S": "5",
        "SLUICE_ADMIN_TOKEN": "a-token-of-the-shell-000000",
        "SLUICE_ADMIN": "127.0.0.1:1",
        "SLUICE_LOG_LEVEL": "debug",
    }
    assert load(file, environ, Flags()).replaced == (
        "admin.token from SLUICE_ADMIN_TOKEN, instead of sluice.toml:3",
        "grace_s from SLUICE_GRACE_S=5, instead of 3 (sluice.toml:1)",
    )


@pytest.mark.parametrize(
    "name",
    [
        "SLUICE_SERVICE_HOST",
        "SLUICE_SERVICE_PORT",
        "SLUICE_PORT",
        "SLUICE_PORT_9870_TCP_ADDR",
        "SLUICE_ADMIN_PORT_9870_TCP_PROTO",
    ],
)
def test_variables_that_kubernetes_makes_of_a_service_are_left_alone(name: str) -> None:
    load(None, {name: "tcp://10.0.0.1:9870"}, Flags())


ENDPOINT = 'must be "host:port", for example "127.0.0.1:10911" or "[::1]:10911"'
LEVEL = 'must be "debug", "info", "warning" or "error"'
LISTENER = '[[listeners]]\nlisten = "{}"\nbroker = "{}"'
LIMIT = '[[limits]]\nkind = "topic"\nname = "a"\n'
NOTHING_SAID = (
    'no limit is set; allowed: rate or bytes_per_s, action = "off", exempt = true, confirm = "after_consume", or'
    " weight; for a listener also adaptive = true"
)
HANDLER = '[[handlers]]\nname = "rate_limit"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[bounds]\nmax_connections = -1", "2: bounds.max_connections = -1: must be at least 1"),
        ("\n[default.topic]\nrate = 1", '2: default: unknown; did you mean "defaults"?'),
        ("\nlimiting = 1", "2: limiting = 1: must be true or false"),
        ("grace_s = inf", "1: grace_s = inf: must be a finite number"),
        ('[[handlers]]\nname = ""', '2: handlers[0].name = "": must not be empty'),
        ('[log]\nlevel = "loud"', f'2: log.level = "loud": {LEVEL}'),
        ('[listeners]\nlisten = "a:1"', '1: listeners = {"listen": "a:1"}: must be an array'),
        ("[[listeners]]\n\nlisten = 'a:1'", "1: listeners[0].broker: missing, but required"),
        (LISTENER.format("a:1", "b:0"), '3: listeners[0].broker = "b:0": must include the broker\'s port'),
        (LISTENER.format("a:1", "b:1") + "\nexempt = ['10.1.0.0/8']", '4: listeners[0].exempt[0] = "10.1.0.0/8": must'),
        (
            LISTENER.format("a:1", "b:1") + "\nadvertise = 'x'",
            '4: listeners[0].advertise: unknown; did you mean "options.advertise"? Allowed here: backup_brokers',
        ),
        (LIMIT + "rate = '500'", '4: limits[0].rate = "500": must be a non-negative number'),
        (LIMIT + "rte = 1\nrate = 1", '4: limits[0].rte: unknown; did you mean "rate"?'),
        (LIMIT, f"1: limits[0]: {NOTHING_SAID}"),
        (LIMIT + "rate = '500/min'", '4: limits[0].rate = "500/min": must be a non-negative number'),
        (
            LIMIT + "rate = 1\naction = 'refuse'",
            '5: limits[0].action = "refuse": must be "reject", "shadow", "delay" or "off"; did you mean "reject"?',
        ),
        (LIMIT + "exempt = ['::1']", '4: limits[0].exempt = ["::1"]: must be true or false'),
        ("[defaults.topic]\nrate = 1\nshared = true", "3: defaults.topic.shared: unknown; allowed here: action"),
        (
            "[[log]\nx",
            "1: not TOML: expected ']]' at the end of an array declaration (at line 1, column 6): \"[[",
        ),
        ("rate = 500/s # a second", "1: not TOML: expected newline"),
        ('"a\\u001b[2J" = 1', "1: a\\x1b[2J: unknown; allowed here: " + ", ".join(sorted(keys(Settings)))),
        ("a = " + "[" * 3000, " nested too deeply"),
    ],
)
def test_a_fault_in_the_file_names_line_key_value_and_allowed_values(write: Write, text: str, line: str) -> None:
    (told,) = lines(write(text))
    assert told.startswith(f"sluice.toml:{line}")


@pytest.mark.parametrize(
    ("text", "language"),
    [('{"limits": []}', "JSON"), ("limits:\n  - kind: topic\n", "YAML"), ("# of the team\n---\nlimits: []\n", "YAML")],
)
def test_another_format_is_called_by_its_name(write: Write, text: str, language: str) -> None:
    (line,) = lines(write(text))
    assert line.endswith(f"; this looks like {language}; see the example in deploy/sluice.toml")


def test_faults_of_one_kind_are_reported_together(write: Write) -> None:
    file = write("limiting = 3\n[bounds]\nmax_connections = 0\n[log]\nx = 1\n")
    assert [line.split(" ")[0] for line in lines(file)] == ["sluice.toml:1:", "sluice.toml:3:", "sluice.toml:5:"]
    assert lines(file, {"SLUICE_LOGLEVEL": "info"}) == [
        'environment variable SLUICE_LOGLEVEL: unknown; did you mean "SLUICE_LOG_LEVEL"?'
    ]


def test_a_fault_of_the_environment_names_the_variable(write: Write) -> None:
    file = write("[bounds]\nmax_connections = 5\n")
    assert lines(file, {"SLUICE_BOUNDS_MAX_CONNECTIONS": "many"}) == [
        "SLUICE_BOUNDS_MAX_CONNECTIONS=many: must be a whole number"
    ]
    assert lines(None, {"SLUICE_LOG_LEVEL": "a\nb"}) == [f'SLUICE_LOG_LEVEL="a\\nb": {LEVEL}']


def test_a_faulty_secret_is_not_shown(write: Write) -> None:
    for text in (
        "[admin]\ntoken = 1234567890123",
        '[admin]\ntoken = "topsecret12345',
        '[admin]\nread_token = ["topsecret"]',
    ):
        (line,) = lines(write(text))
        assert "1234567" not in line
        assert "topsecret" not in line


def test_a_fault_of_a_flag_names_the_flag() -> None:
    assert lines(flags=Flags(listen=["x"], broker=["b:1"])) == [f"--listen x: {ENDPOINT}"]
    assert lines(flags=Flags(values={("grace_s",): ("--grace-s", -1.0)})) == ["--grace-s -1.0: must be at least 0"]
    assert lines(flags=Flags(protocol="x")) == ["--protocol x: requires --listen and --broker"]


def test_addresses_without_a_port_are_refused() -> None:
    pairs = "give one broker for each listen address"
    given = Flags(listen=["a:1", "a:2"], broker=["b:1"])
    assert lines(flags=given) == [f"--listen has 2 values, but --broker has 1; {pairs}"]
    assert lines(None, {"SLUICE_BROKER": "a:1 a:2 a:3"}) == [f"--listen has 0 values, but SLUICE_BROKER has 3; {pairs}"]


def test_a_file_that_cannot_be_read_is_named(write: Write) -> None:
    here = Path(write("")).absolute().parent
    why = "cannot be read: no such file or directory"
    assert lines("nowhere.toml") == [f"nowhere.toml: {why} (looked for {here}/nowhere.toml); pass a TOML file"]
    assert lines(None, {"SLUICE_CONFIG": "/no/file"}) == [f"SLUICE_CONFIG=/no/file: {why}; pass a TOML file"]
    assert lines(".") == [".: cannot be read: is a directory; pass a TOML file"]


@pytest.mark.parametrize("rate", ["500", "500.0", '"500/s"', '"500.0/s"'])
def test_a_rate_in_the_file_may_have_its_unit_as_everywhere_else(write: Write, rate: str) -> None:
    (limit,) = load(write(f"\N{ZERO WIDTH NO-BREAK SPACE}{LIMIT}rate = {rate}"), {}, Flags()).settings.limits
    assert limit["rate"] == 500
