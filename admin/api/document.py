"""The OpenAPI document: what FastAPI knows of the routes, with schemas of the very types that are sent.

Every endpoint says with ``done`` and ``not_done`` what it answers; the examples are in ``examples``.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from admin.api import examples
from admin.live.model import SetLimit, SetSwitch, UnsetLimit, UnsetSwitch
from admin.settings import WrittenLimit
from admin.version import sluice_version
from admin.wire import BASE, MAX_EDITS, MAX_REASON, MAX_TTL_S, PROBLEM, Problem

Documented = dict[int | str, dict[str, Any]]

_REF: Final = "#/components/schemas/{name}"
_WORDS: Final[Mapping[int, str]] = {
    400: "The request cannot be read, or asks for what is not allowed; `errors` names each field.",
    401: "A token is wanted, or there is no such token.",
    403: "The token may only read, or a script of another site asks.",
    404: "There is no such thing.",
    405: "This cannot be done here; `Allow` says what can.",
    408: "The body was not there in time.",
    409: "It cannot be done as things are; nothing was changed.",
    412: "What `If-Match` or `If-None-Match` expects is not so: `etag` is in force, `detail` says whose change it was.",
    413: "The body is too large.",
    415: "The body must be `application/json`.",
    421: "Nothing is served under this Host.",
    500: "A fault of Sluice; its log has the reason.",
    503: "Too many streams are open; `Retry-After` says when to try again.",
    507: "The state directory does not take the edit; nothing was changed. `volatile=1` does it until the restart.",
}
_ALWAYS: Final = (400, 401, 403, 405, 408, 413, 415, 421, 500)
_EDITS: Final[tuple[type[msgspec.Struct], ...]] = (SetLimit, UnsetLimit, SetSwitch, UnsetSwitch)
_TYPES: Final[set[type[msgspec.Struct]]] = {Problem}
_EXAMPLES: Final[list[object]] = []
_EXAMPLE: Final = "example "
_ETAG: Final = {
    "ETag": {"description": "names what is in force, for `If-Match`", "schema": {"type": "string"}, "required": True}
}
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)

TAGS: Final = [
    {"name": "limits", "description": "What is limited, how much of it is used, and live edits of it."},
    {"name": "switches", "description": "Limiting off and on: of all, or of one kind."},
    {"name": "rules", "description": "The rules in force, and why a request is limited as it is."},
    {"name": "audit", "description": "Who changed what, when and why; and undoing it."},
    {"name": "connections", "description": "Open connections."},
    {"name": "state", "description": "How Sluice is."},
]


def ref(model: type[msgspec.Struct]) -> dict[str, str]:
    """Return the reference to a type's schema."""
    _TYPES.add(model)
    return {"$ref": _REF.format(name=model.__name__)}


def done(
    model: type[msgspec.Struct], what: str, example: object, *, etag: bool = False, may_have_it: bool = False
) -> Documented:
    """Describe a good answer.

    Args:
        model: of its body.
        what: it is.
        example: of its body.
        etag: it has one.
        may_have_it: it is 304 for who has it already.
    """
    described: dict[str, Any] = {
        "description": what,
        "content": {"application/json": {"schema": ref(model), "example": _kept(msgspec.to_builtins(example))}},
    }
    if etag:
        described["headers"] = _ETAG
    documented: Documented = {200: described}
    if may_have_it:
        documented[304] = {"description": "The client has it already.", "headers": _ETAG}
    return documented


def not_done(*statuses: int) -> Documented:
    """Describe problems, besides those that every endpoint may answer."""
    return {
        status: {
            "description": _WORDS[status],
            "content": {PROBLEM: {"schema": ref(Problem), "example": _kept(examples.problem(status))}},
            **_problem_headers(status),
        }
        for status in sorted({*_ALWAYS, *statuses})
    }


def _problem_headers(status: int) -> dict[str, Any]:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        what, schema, name = "seconds", {"type": "integer"}, "Retry-After"
    elif status == HTTPStatus.UNAUTHORIZED:
        what, schema, name = "the scheme that is wanted", {"type": "string"}, "WWW-Authenticate"
    else:
        return {}
    return {"headers": {name: {"description": what, "schema": schema, "required": True}}}


def _kept(example: object) -> str:
    """Keep an example out of FastAPI's hands, which leave out what is null; returns what stands for it."""
    _EXAMPLES.append(example)
    return f"{_EXAMPLE}{len(_EXAMPLES) - 1}"


def body(schema: str, example: object, *, required: bool = True, what: str = "") -> dict[str, Any]:
    """Describe the body of a request, for a route's ``openapi_extra``.

    Args:
        schema: one of those that ``document`` adds.
        example: of the body.
        required: it must be there.
        what: it is.
    """
    content = {"application/json": {"schema": {"$ref": _REF.format(name=schema)}, "example": _kept(example)}}
    return {"requestBody": {"description": what, "required": required, "content": content}}


def document(app: FastAPI) -> dict[str, Any]:
    """Make the OpenAPI document, once."""
    if app.openapi_schema is None:
        openapi = get_openapi(
            title="Sluice",
            version=sluice_version(),
            summary="Limits of a message broker's topics: what they are, what they do, and changing them live.",
            description="Errors are problem details (RFC 9457), whose `errors` name each field. Times are ISO 8601 in"
            " UTC. A write is durable before it is answered, and holds for the very next request of every"
            " connection.",
            routes=app.routes,
            tags=TAGS,
            servers=[{"url": BASE, "description": "this Sluice"}],
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        components = openapi.setdefault("components", {})
        components["schemas"] = _schemas()
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "a token of the read or the write role"}
        }
        # Without any token in the configuration none is asked for.
        openapi["security"] = [{"token": []}, {}]
        for operation in (each for path in openapi["paths"].values() for each in path.values()):
            # FastAPI's own error, which is a 400 here.
            operation["responses"].pop("422", None)
            for described in (*operation["responses"].values(), operation.get("requestBody", {})):
                for content in described.get("content", {}).values():
                    if content["example"].startswith(_EXAMPLE):
                        content["example"] = _EXAMPLES[int(content["example"].removeprefix(_EXAMPLE))]
        app.openapi_schema = openapi
    return app.openapi_schema


def _schemas() -> dict[str, Any]:
    types = _TYPES.union(_EDITS)
    _, schemas = msgspec.json.schema_components(sorted(types, key=lambda each: each.__name__), ref_template=_REF)
    for schema in schemas.values():
        _describe(schema)
    schemas |= _bodies()
    for edit in _EDITS:
        properties = schemas[edit.__name__]["properties"]
        properties["reason"]["maxLength"] = MAX_REASON
        if "ttl_s" in properties:
            properties["ttl_s"] |= _TTL
        if "name" in properties:
            properties["name"]["minLength"] = 1
    schemas["SetLimit"]["properties"]["limit"] = {"$ref": _REF.format(name="Limit")}
    return dict(sorted(schemas.items()))


def _describe(schema: dict[str, Any]) -> None:
    """Give the attributes of a docstring to the properties that they are about."""
    text = cleandoc(schema.get("description", ""))
    head, _, attributes = text.partition("\n\nAttributes:\n")
    schema["description"] = _one_line(head)
    for name, what in _ATTRIBUTE.findall(attributes):
        if name in schema.get("properties", {}) and "$ref" not in schema["properties"][name]:
            schema["properties"][name]["description"] = _one_line(what)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()


_TTL: Final[dict[str, Any]] = {
    "description": "seconds after which what was in force before holds again; for good if not given",
    "anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TTL_S}, {"type": "null"}],
}
_REASON: Final[dict[str, Any]] = {
    "type": "string",
    "maxLength": MAX_REASON,
    "default": "",
    "description": "why, for the audit trail",
}


def _bodies() -> dict[str, Any]:
    limit = WrittenLimit.model_json_schema(ref_template=_REF.replace("name", "model"))
    limit |= {"title": "Limit", "description": "A limit as it is written in the file."}
    definitions: dict[str, Any] = limit.pop("$defs", {})
    put = {
        **limit,
        "title": "PutLimit",
        "description": "The whole limit: nothing is taken over from what was in force.",
        "properties": {**limit["properties"], "reason": _REASON, "ttl_s": _TTL},
    }
    return {
        **definitions,
        "Limit": limit,
        "PutLimit": put,
        "PutSwitch": _object({"limiting": {"type": "boolean"}, "reason": _REASON, "ttl_s": _TTL}, ["limiting"]),
        "Revert": _object(
            {
                "reason": _REASON,
                "force": {"type": "boolean", "default": False, "description": "even if a later change was made"},
            }
        ),
        "Batch": _object(
            {
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_EDITS,
                    "items": {"oneOf": [ref(each) for each in _EDITS]},
                },
                "reason": {**_REASON, "description": "of the edits that have none"},
            },
            ["edits"],
        ),
    }


def _object(properties: dict[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": list(required)} if required else schema
