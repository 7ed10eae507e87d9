"""The configuration on each page is valid, because users copy it."""

import re
import tomllib
from pathlib import Path

import pytest

from admin.client.target import Given, find_target, profiles_file
from admin.config.sources import Flags, load
from admin.run.composition import compose
from limiter.rules.resource import Resource
from proxy.protocols.base import ListenerAddresses
from proxy.protocols.rocketmq.name_server import NameServerOptions
from proxy.protocols.rocketmq.routes import advertised_addresses

DOCS = Path(__file__).parents[3] / "docs"
LIMITS = (DOCS / "limits.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\*\*(\d+)\. .*?```toml\n(.*?)```", LIMITS, re.DOTALL)
PAIR = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])


def test_there_are_ten_examples() -> None:
    assert [number for number, _ in EXAMPLES] == [str(number) for number in range(1, 11)]
    assert len(re.findall("```toml", LIMITS)) == 10


@pytest.mark.parametrize(("number", "text"), EXAMPLES)
def test_an_example_can_be_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sluice.toml").write_text(text, encoding="utf-8")
    flags = Flags() if "listeners" in tomllib.loads(text) else PAIR
    plan = compose(load("sluice.toml", {}, flags))
    limiting = [rule for rule in plan.rule_set.rules if rule.source.startswith("sluice.toml")]

    assert limiting
    # Example 4 is about limits that only count.
    assert plan.warnings() == [] or number == "4"


def test_limits_of_the_command_line_can_be_used_as_they_are() -> None:
    section = LIMITS.split("## Limits in ten examples")[1].split("**1.")[0]
    texts = re.findall(r"`([a-z_]+:[^`]*=[^`]*)`", section)

    assert len(texts) >= 5
    compose(load(None, {}, Flags(listen=PAIR.listen, broker=PAIR.broker, limits=texts)))


@pytest.mark.parametrize("number", [0, 1])
def test_the_pages_routes_are_as_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "rocketmq-routes.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    # The second one is another spelling of the first one's last listener.
    text = (
        first
        if number == 0
        else re.sub(r"\[\[listeners\]\] +# the name.*?\n\n", lambda _: second, first, flags=re.DOTALL)
    )
    Path("sluice.toml").write_text(text, encoding="utf-8")
    plan = compose(load("sluice.toml", {}, Flags()))
    assert plan.warnings() == []
    fronts = [
        ListenerAddresses(each.protocol.name, each.settings.listen, (each.settings.broker,))
        for each in plan.listeners
        if each.protocol.name == "rocketmq"
    ]
    options = plan.listeners[2].options
    assert isinstance(options, NameServerOptions)
    assert advertised_addresses(options.addresses, options.advertise, fronts, "192.0.2.7") == {
        ("10.0.0.5", 10911): (b"192.0.2.7:10911", b"sluice.example.com:30911")[number],
        ("10.0.0.5", 10909): (b"192.0.2.7:10909", b"sluice.example.com:10909")[number],
    }


def test_the_profile_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    page = (DOCS / "live-limits.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n# profiles\.toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (ca_file,) = re.findall(r'ca_file = "(.*)"', text)
    profiles_file().parent.mkdir()
    profiles_file().write_text(text.replace(ca_file, "ca.pem"), encoding="utf-8")
    profiles_file().with_name("ca.pem").touch()
    token = profiles_file().with_name("orders-1.token")
    token.write_text("token-of-the-page-that-shows-it", encoding="utf-8")
    token.chmod(0o600)
    target = find_target(Given(profile="orders-1"), {})
    assert (target.url, target.token, target.warnings) == (
        "https://10.0.0.5:9870",
        "token-of-the-page-that-shows-it",
        (),
    )


def test_the_example_of_an_adaptive_limit_can_be_used_as_it_is(tmp_path: Path) -> None:
    page = (DOCS / "adaptive.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n# sluice_adaptive\.toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    file = tmp_path / "sluice.toml"
    file.write_text(text, encoding="utf-8")
    plan = compose(load(str(file), {}, Flags()))
    assert plan.warnings() == []
    assert plan.rule_set.match(Resource("listener", "default")).name == "adaptive listener:*"


def test_the_example_of_a_fleet_can_be_used_as_it_is(tmp_path: Path) -> None:
    page = (DOCS / "fleet.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n# sluice_fleet\.toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    file, password = tmp_path / "sluice.toml", tmp_path / "fleet-password"
    password.write_text("secret", encoding="utf-8")
    file.write_text(text.replace("/etc/sluice/fleet-password", str(password)), encoding="utf-8")
    plan = compose(load(str(file), {}, Flags()))
    assert plan.warnings() == []
    assert [plan.rule_set.match(Resource("topic", name)).fleet for name in ("orders", "mail")] == [True, False]
