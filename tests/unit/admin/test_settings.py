import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from admin.settings import Endpoint, Settings, parse_endpoint

SAMPLE = Path(__file__).parents[3] / "deploy" / "sluice.toml"


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
def test_what_is_no_endpoint_is_refused_with_what_is_allowed(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_endpoint(text)


def test_every_key_has_a_description_where_it_is_defined() -> None:
    def missing(model: type[BaseModel]) -> list[str]:
        return [
            f"{model.__name__}.{key}"
            for key, info in model.model_fields.items()
            if not info.description and not _tables(info.annotation)
        ] + [
            line
            for info in model.model_fields.values()
            for table in _tables(info.annotation)
            for line in missing(table)
        ]

    assert missing(Settings) == []


def test_the_sample_configuration_names_every_key_with_its_default() -> None:
    sample = tomllib.loads(SAMPLE.read_text(encoding="utf-8"))
    settings = Settings.model_validate(sample)
    assert set(sample) == set(Settings.model_fields)
    for section, key in [("bounds", None), ("admin", None), ("log", None), ("limiting", None), ("grace_s", None)]:
        del key
        assert getattr(settings, section) == getattr(Settings(), section), section
    for section in ("bounds", "admin", "log"):
        assert set(sample[section]) == set(type(getattr(settings, section)).model_fields), section
    assert set(sample["listeners"][0]) == set(type(settings.listeners[0]).model_fields)
    assert set(sample["handlers"][0]) == set(type(settings.handlers[0]).model_fields)
    assert settings.handlers[0].model_dump() | {"lane": None} == Settings().handlers[0].model_dump()
    limit_keys = {key for limit in sample["limits"] for key in limit} | set(sample["defaults"]["topic"])
    assert limit_keys == set(type(settings.limits[0]).model_fields)


def _tables(annotation: object) -> list[type[BaseModel]]:
    inner = [annotation, *getattr(annotation, "__args__", ())]
    return [each for each in inner if isinstance(each, type) and issubclass(each, BaseModel)]
