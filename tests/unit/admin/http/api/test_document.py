"""The OpenAPI document, compared with the routes, with itself, and with real answers."""

import json
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from admin.http.api import Services, application, document
from admin.stats import LiveStats
from admin.stats.health import Health


@pytest.fixture
def app(data_path: Any) -> Any:
    # The routes' data is not used.
    nobody: Any = None
    return application(Services(data_path, nobody, LiveStats(data_path, nobody, Health(data_path))))


@pytest.fixture
def openapi(app: Any) -> dict[str, Any]:
    return json.loads(json.dumps(document.document(app)))


def operations(openapi: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, each) for path, item in openapi["paths"].items() for method, each in item.items()]


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        found = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return found.union(*(references(each) for each in node.values()))
    if isinstance(node, list):
        return set().union(*(references(each) for each in node))
    return set()


def validator(openapi: dict[str, Any], schema: dict[str, Any]) -> Any:
    # The components beside the schema, so that its references are resolved.
    return jsonschema_rs.Draft202012Validator({**schema, "components": openapi["components"]})


def test_every_operation_has_a_summary(openapi: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in openapi["tags"]}
    for path, method, operation in operations(openapi):
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        assert set(operation["tags"]) <= tags
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (path, method, parameter["name"])
        assert {"200", "400", "401", "403", "405", "413", "415", "421"} <= operation["responses"].keys()
        assert "422" not in operation["responses"]


def test_every_reference_leads_somewhere_and_every_schema_is_used(openapi: dict[str, Any]) -> None:
    names = {f"#/components/schemas/{name}" for name in openapi["components"]["schemas"]}
    assert references(openapi) == names


def test_every_schema_is_a_schema(openapi: dict[str, Any]) -> None:
    for name, schema in openapi["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert schema.get("description"), name


def test_every_example_of_a_body_is_valid(openapi: dict[str, Any]) -> None:
    bodies = [operation["requestBody"] for _, _, operation in operations(openapi) if "requestBody" in operation]
    assert len(bodies) == 5
    for body in bodies:
        content = body["content"]["application/json"]
        validator(openapi, content["schema"]).validate(content["example"])


def test_the_document_is_one_that_tools_read(openapi: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(openapi)
    schema.validate()


async def test_the_document_is_served(served: Any) -> None:
    answer = await served.get("openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["openapi"].startswith("3.1")
