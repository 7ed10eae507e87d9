import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from admin.config.faults import FaultsError, is_table, keys, read
from admin.config.limit_fields import DefaultLimit
from admin.config.settings import (
    Endpoint,
    FleetSettings,
    HandlerSettings,
    LimitSettings,
    ListenerSettings,
    ReportSettings,
    Settings,
    parse_endpoint,
)
from admin.config.sources import Flags, load
from admin.run.composition import compose

SAMPLE = Path(__file__).parents[4] / "deploy" / "sluice.toml"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:10911", Endpoint("127.0.0.1", 10911)),
        ("[::1]:80", Endpoint("::1", 80)),
        ("broker.example:0", Endpoint("broker.example", 0)),
        (" a:1 ", Endpoint("a", 1)),
    ],
)
def test_an_endpoint_is_read_and_written(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["", "host", ":80", "host:", "host:-1", "host:65536", "host:x", "::1:80", "http://h:80", "h h:80", 80, None, "a:²"],
)
def test_invalid_endpoint_is_refused_with_the_allowed_form(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_endpoint(text)


def test_every_key_has_a_description_where_it_is_defined() -> None:
    tables = [key.plain for key in keys(Settings).values() if is_table(key.plain)]
    for table in (*tables, ListenerSettings, HandlerSettings):
        described = re.findall(r"(?m)^ {8}(\w+): ", table.__doc__)
        assert described == [*keys(table)], table
    assert all(key.metas[-1].description for key in keys(LimitSettings).values())


def _with_commented_keys(text: str) -> Any:
    """Read a sample together with its commented keys, which have no blank behind the #."""
    return tomllib.loads(re.sub(r"(?m)^#(?=[a-z_]+ = |\[fleet\])", "", text))


def test_the_sample_configuration_names_every_key_with_its_default() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    settings = read(Settings, tomllib.loads(text))
    sections = "bounds", "admin", "log", "rejection_log", "spool", "alarms"
    for section in (*sections, "limiting", "grace_s", "state_dir"):
        assert getattr(settings, section) == getattr(Settings(), section), section
    sample = _with_commented_keys(text)
    assert set(sample) == set(keys(Settings))
    for section in sections:
        assert set(sample[section]) == set(keys(type(getattr(settings, section)))), section
    assert set(sample["fleet"]) == set(keys(FleetSettings))
    assert set(sample["listeners"][0]) == set(keys(ListenerSettings))
    assert set(sample["handlers"][0]) == set(keys(HandlerSettings))
    for key, info in keys(HandlerSettings).items():
        assert key in {"name", "lane", "options"} or sample["handlers"][0][key] == info.default, key
    assert {key for limit in _limits(sample) for key in limit} == set(keys(LimitSettings))


def test_the_sample_configuration_can_be_used_as_it_is() -> None:
    assert compose(load(str(SAMPLE), {}, Flags())).warnings() == []


def _limits(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [*sample["limits"], *sample["defaults"].values()]


@pytest.mark.parametrize("value", [pytest.param(10**400, id="large"), float("inf"), float("nan"), True, "5", -1e-320])
def test_invalid_number_is_not_a_limit(value: Any) -> None:
    for key in ("rate", "burst_s"):
        with pytest.raises(FaultsError):
            read(DefaultLimit, {key: value})


def test_a_report_is_named_by_its_file() -> None:
    assert read(ReportSettings, {"recommendations": "off"}).recommendations == "off"
    with pytest.raises(FaultsError, match=r"must be the path of a recommendations\.json"):
        read(ReportSettings, {"recommendations": "out"})
