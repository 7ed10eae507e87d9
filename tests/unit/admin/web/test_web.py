import json
import re
from pathlib import Path, PurePosixPath

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from admin import web
from admin.common.columns import COLUMNS
from admin.config.faults import keys
from admin.config.limit_fields import DefaultLimit, Limit
from limiter.rules.resource import SCOPES, TOTAL

_FILES = Path(web.__file__).parent / "files"


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=web.routes()))


def test_page_and_its_files_are_served_with_their_types(client: TestClient) -> None:
    expected = {"": "text/html", "web/base.css": "text/css", "web/main.js": "text/javascript", "web/icon.svg": "image/"}
    expected |= {
        "web/vendor/preact.js": "text/javascript",
        "web/vendor/uplot.js": "text/javascript",
        "web/vendor/uplot.css": "text/css",
    }
    for path, media_type in expected.items():
        answer = client.get(f"/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media_type)
        assert answer.headers["cache-control"] == "no-cache"


def test_file_that_is_known_already_is_not_sent_again(client: TestClient) -> None:
    etag = client.get("/web/main.js").headers["etag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        answer = client.get("/web/main.js", headers={"if-none-match": known})
        assert answer.status_code == 304
        assert answer.content == b""
        assert answer.headers["etag"] == etag
    assert client.get("/web/main.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_every_file_that_another_one_names_is_there() -> None:
    names = set(web.files())
    for name in names:
        text = (_FILES / name).read_text(encoding="utf-8")
        for imported in re.findall(r"\bfrom ?\"\./([^\"]+)\"", text):
            assert str(PurePosixPath(name).parent / imported) in names, f"{name}: {imported}"
        for part in text.split('"/web/')[1:]:
            assert part.split('"')[0] in names


def test_the_form_has_all_fields_of_a_limit_in_addition_to_its_rate(client: TestClient) -> None:
    text = client.get("/web/fields.js").text
    fields = json.loads(text.split("export const FIELDS = ")[1].split(";\n")[0])
    assert {each["key"] for each in fields} == keys(Limit).keys() - {"rate"}
    action = next(each for each in fields if each["key"] == "action")
    assert action["options"][2] == ["delay", "delay, then reject"]
    assert {each["key"] for each in fields if each["named"]} == keys(Limit).keys() - keys(DefaultLimit).keys()


def test_tables_have_the_columns_of_the_api(client: TestClient) -> None:
    text = client.get("/web/parts.js").text
    tables = json.loads(text.split("export const COLUMNS = ")[1].split(";\n")[0])
    assert tables.keys() == COLUMNS.keys()
    refused = next(each for each in tables["limits"] if each["name"] == "refused")
    assert (refused["title"], refused["field"], refused["order"]) == ("Refused/s", "live.refused_per_s", "desc")


def test_only_non_resources_have_no_page() -> None:
    text = (_FILES / "app.js").read_text(encoding="utf-8")
    assert set(json.loads(text.split("NO_RESOURCES = ")[1].split(";")[0])) == {*SCOPES, TOTAL}


def test_no_script_makes_markup_of_text() -> None:
    for path in _FILES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{path.name}: {word}"


def test_no_export_is_left_over() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in _FILES.glob("*.js")}
    for name, script in scripts.items():
        for exported in re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", script, re.MULTILINE):
            others = "".join(other for path, other in scripts.items() if path != name)
            assert re.search(rf"\b{exported}\b", others), f"{name}: nobody imports {exported}"


def test_no_file_carries_inline_script_or_style() -> None:
    text = (_FILES / web.INDEX).read_text(encoding="utf-8")
    assert "style=" not in text
    assert "<style" not in text
    assert len(re.findall(r"<script\b", text)) == len(
        re.findall(r'<script (defer|type="module") src="/web/[^"]+"></', text)
    )
