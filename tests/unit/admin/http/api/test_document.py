"""The OpenAPI document against the routes, against itself, and against what is answered."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from admin.http.api import Services, application, document
from admin.stats import LiveStats
from admin.stats.health import Health


@pytest.fixture
def app(data_path: Any) -> Any:
    # Nothing is asked of what is behind the routes.
    live: Any = None
    return application(Services(data_path, live, LiveStats(data_path, live, Health(data_path))))


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
    # The components beside the schema, so that its references lead somewhere.
    return jsonschema_rs.Draft202012Validator({**schema, "components": openapi["components"]})


def test_every_operation_says_what_it_is(openapi: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in openapi["tags"]}
    for path, method, operation in operations(openapi):
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        assert set(operation["tags"]) <= tags
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (path, method, parameter["name"])
        assert {"200", "400", "401", "403", "405", "413", "415", "421"} <= operation["responses"].keys()
        assert "422" not in operation["responses"]


def test_every_parameter_of_a_path_is_described(openapi: dict[str, Any]) -> None:
    for path, method, operation in operations(openapi):
        in_path = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path)), (path, method)


def test_every_reference_leads_somewhere_and_every_schema_is_used(openapi: dict[str, Any]) -> None:
    names = {f"#/components/schemas/{name}" for name in openapi["components"]["schemas"]}
    assert references(openapi) == names


def test_every_schema_is_a_schema(openapi: dict[str, Any]) -> None:
    for name, schema in openapi["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert schema.get("description"), name


def test_every_example_of_a_body_is_valid(openapi: dict[str, Any]) -> None:
    bodies = [operation["requestBody"] for _, _, operation in operations(openapi) if "requestBody" in operation]
    assert len(bodies) == 7
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


def test_the_document_does_not_name_this_machine(openapi: dict[str, Any]) -> None:
    assert openapi["servers"] == [{"url": "/api/v1", "description": "this Sluice"}]
    assert str(Path(__file__).parents[5]) not in json.dumps(openapi)


#: The names of functions in clients that are made from the document: one that is changed breaks them.
OPERATIONS = {
    "GET /limits": "list_limits",
    "GET /limits/{kind}/{name}": "get_limit",
    "PUT /limits/{kind}/{name}": "set_limit",
    "PATCH /limits/{kind}/{name}": "patch_limit",
    "POST /limits/{kind}/{name}:reset": "reset_limit",
    "DELETE /limits/{kind}/{name}": "unset_limit",
    "POST /limits:batch": "change_limits",
    "GET /defaults": "list_defaults",
    "GET /defaults/{kind}": "get_default",
    "PUT /defaults/{kind}": "set_default",
    "PATCH /defaults/{kind}": "patch_default",
    "DELETE /defaults/{kind}": "unset_default",
    "GET /diff": "list_edits",
    "GET /events": "follow_events",
    "GET /switches": "list_switches",
    "GET /switches/{kind}": "get_switch",
    "PUT /switches/{kind}": "set_switch",
    "DELETE /switches/{kind}": "unset_switch",
    "GET /rules": "list_rules",
    "GET /export": "export_limits",
    "GET /explain": "explain",
    "GET /audit": "list_changes",
    "GET /audit/{id}": "get_change",
    "POST /audit/{id}/revert": "revert_change",
    "POST /reload": "reload_configuration",
    "GET /connections": "list_connections",
    "DELETE /connections/{id}": "close_connection",
    "GET /flow": "get_flow",
    "GET /history/{kind}/{name}": "get_history",
    "GET /advice/{kind}/{name}": "get_advice",
    "GET /spool": "get_spool",
    "DELETE /spool/{kind}/{name}": "purge_spool",
    "GET /state": "get_state",
    "GET /whoami": "get_caller",
    "GET /problems": "list_problem_types",
    "GET /problems/{name}": "get_problem_type",
}


def test_operations_are_called_as_a_client_calls_them(openapi: dict[str, Any]) -> None:
    found = {f"{method.upper()} {path}": each["operationId"] for path, method, each in operations(openapi)}
    assert found == OPERATIONS
    assert len(set(found.values())) == len(found)
