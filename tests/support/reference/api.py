"""Generates the page of the HTTP API from its OpenAPI document."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from admin.http.api import Services, application
from admin.http.api.document import document
from admin.stats import LiveStats
from admin.stats.health import Health
from admin.wire import BASE, PROBLEM_TYPES
from reference import markdown
from reference.markdown import code, null, one_line, shape, table, value

_INTRODUCTION: Final = """\
All paths are relative to the admin address. This page is generated from the OpenAPI document `{base}/openapi.json`,
which also contains examples. Names in paths are percent-encoded. If tokens are configured, every request needs
`Authorization: Bearer TOKEN`, and a request that changes something needs a token with the role `write`. Any request may
also fail with the status {always} and a [Problem](#problem)."""


@cache
def openapi() -> dict[str, Any]:
    # The routes' services are not used.
    nobody: Any = None
    stats = LiveStats(nobody, nobody, Health(nobody))
    return document(application(Services(nobody, nobody, stats)))


def _parameters(operation: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for each in operation.get("parameters", ()):
        schema = each["schema"]
        default = "required" if each.get("required") else value(schema["default"]) if schema.get("default") else ""
        yield code(each["name"]), each["in"], shape(schema), default, one_line(each.get("description", ""))


def _operation(method: str, path: str, operation: Mapping[str, Any], always: set[str]) -> Iterator[str]:
    yield f"### `{method.upper()} {BASE}{path}`"
    words = [one_line(operation.get(key, "")) for key in ("summary", "description")]
    yield " ".join(f"{each.rstrip('.')}." for each in words if each)
    rows = list(_parameters(operation))
    if rows:
        yield table(("parameter", "in", "value", "default", "meaning"), rows)
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        yield f"Body: {shape(content['schema'])}."
    answers = []
    for status, answer in operation["responses"].items():
        if str(status) not in always:
            types = [shape(each["schema"]) for each in answer.get("content", {}).values() if each.get("schema")]
            answers.append((str(status), ", ".join(types), one_line(answer["description"])))
    yield table(("status", "body", "meaning"), answers)


def _properties(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    return table(
        ("field", "value", "default", "meaning"),
        (
            (
                code(name),
                shape(each),
                "required" if name in required else value(each["default"]) if each.get("default") is not None else "",
                null(one_line(each.get("description", ""))).rstrip("."),
            )
            for name, each in schema["properties"].items()
        ),
    )


def _parts() -> Iterator[str]:
    operations = [
        (path, method, operation) for path, item in openapi()["paths"].items() for method, operation in item.items()
    ]
    always = set.intersection(*({str(status) for status in each["responses"]} for _, _, each in operations))
    always = {status for status in always if int(status) >= 400}
    yield _INTRODUCTION.format(base=BASE, always=", ".join(sorted(always)))
    for tag in openapi()["tags"]:
        yield f"## {tag['name'].capitalize()}\n\n{tag['description']}"
        for path, method, operation in operations:
            if tag["name"] in operation.get("tags", ()):
                yield from _operation(method, path, operation, always)
    yield "## Problems"
    yield "The `type` of a problem never changes."
    yield table(
        ("type", "status", "meaning"),
        ((code(each.type), str(each.status), each.detail) for each in PROBLEM_TYPES.values()),
    )
    yield "## Types"
    for name, schema in openapi()["components"]["schemas"].items():
        yield f"### {name}"
        if schema.get("description"):
            yield one_line(schema["description"])
        yield _properties(schema) if schema.get("properties") else f"{shape(schema)}."


def page() -> str:
    return markdown.page("HTTP API", "the OpenAPI document", *_parts())
