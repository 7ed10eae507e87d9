"""The OpenAPI document: what the table of endpoints says, with schemas of the very types that are sent.

The examples are in ``examples``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, Final

import msgspec
from starlette.applications import Starlette

from admin.common.version import sluice_version
from admin.config.settings import WrittenLimit
from admin.edits.model import MAX_REASON, MAX_TTL_S, SetLimit, SetSwitch, UnsetLimit, UnsetSwitch
from admin.http.api import examples
from admin.http.api.requests import Parameters
from admin.http.api.routing import Endpoint, EndpointRoute
from admin.wire import BASE, EVENT_STREAM, MAX_EDITS, PROBLEM, Answer, Problem, usual_type

_REF: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (400, 401, 403, 405, 408, 413, 415, 421, 500)
_EDITS: Final[tuple[type[msgspec.Struct], ...]] = (SetLimit, UnsetLimit, SetSwitch, UnsetSwitch)
_ETAG: Final = {
    "ETag": {"description": "names what is in force, for `If-Match`", "schema": {"type": "string"}, "required": True}
}
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
#: What a header that names entity tags looks like; an opaque tag may have other characters, ours have none.
_TAGS: Final = r'^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$'
_TAG_HEADERS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "read": (("If-None-Match", "ETags that the client has: 304 if one is current"),),
    "write": (
        ("If-Match", "ETags in quotes, one of which must be current; `*`: there must be an edit"),
        ("If-None-Match", "ETags in quotes, none of which may be current; `*`: there must be no edit"),
    ),
    "batch": (("If-Match", "ETag of the list of limits, which must be current"),),
}

TAGS: Final = [
    {"name": "limits", "description": "Limits, how much of them is used, and live edits."},
    {"name": "switches", "description": "Switch limiting off and on, for everything or for one kind."},
    {"name": "rules", "description": "The rules in force, and which of them apply to a request."},
    {"name": "audit", "description": "Who changed what, when and why; undo a change."},
    {"name": "connections", "description": "Open connections."},
    {"name": "resources", "description": "The last hour of one resource, and what a report recommends for it."},
    {"name": "flow", "description": "What waits for what, alarms, and what is put aside in the spool."},
    {"name": "state", "description": "How Sluice is."},
]


def document(app: Starlette) -> dict[str, Any]:
    """Make the OpenAPI document of an application, once."""
    if not hasattr(app.state, "document"):
        app.state.document = _document([each for each in app.routes if isinstance(each, EndpointRoute)])
    found: dict[str, Any] = app.state.document
    return found


def _document(routes: Sequence[EndpointRoute]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for each in routes:
        paths.setdefault(each.path_format, {})[each.about.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "summary": "Limits of a broker's topics and queues: what they are, what they do, and changing them live.",
            "description": "Errors are problem details (RFC 9457), whose `errors` name each field. Times are ISO 8601"
            " in UTC. A write is durable before it is answered, and applies to the next request of every connection.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "version": sluice_version(),
        },
        "servers": [{"url": BASE, "description": "this Sluice"}],
        "paths": paths,
        "components": {
            "schemas": _schemas({type(each.about.example) for each in routes} - {str}),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "a token of the read or the write role"}
            },
        },
        "tags": TAGS,
        # Without any token in the configuration none is asked for.
        "security": [{"token": []}, {}],
    }


def _operation(route: EndpointRoute) -> dict[str, Any]:
    endpoint = route.about
    parameters = [
        *_parameters("path", endpoint.in_path),
        *_parameters("query", endpoint.query),
        *(
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": what,
                "schema": {"type": "string", "pattern": _TAGS},
            }
            for name, what in _TAG_HEADERS.get(endpoint.tags, ())
        ),
    ]
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": endpoint.summary,
        "description": endpoint.description,
        "operationId": route.name,
        **({"parameters": parameters} if parameters else {}),
        "responses": {str(status): each for status, each in _responses(endpoint)},
    }
    if (body := endpoint.body) is not None:
        operation["requestBody"] = {
            "description": body.what,
            "required": body.required,
            "content": {"application/json": {"schema": _ref(body.schema), "example": body.example}},
        }
    return operation


def _parameters(place: str, model: type[Parameters]) -> Iterator[dict[str, Any]]:
    schema = model.model_json_schema()
    for name, each in schema.get("properties", {}).items():
        if each.get("default", "") is None:
            del each["default"]
        required = name in schema.get("required", ())
        yield {
            "name": name,
            "in": place,
            "required": required,
            "schema": each,
            "description": each["description"],
        }


def _responses(endpoint: Endpoint) -> Iterator[tuple[int, dict[str, Any]]]:
    example = endpoint.example
    if isinstance(example, str):
        content = {EVENT_STREAM: {"schema": {"type": "string"}, "example": example}}
    else:
        content = {
            "application/json": {"schema": _ref(type(example).__name__), "example": msgspec.to_builtins(example)}
        }
    tagged = {"headers": _ETAG} if endpoint.tags in {"list", "read", "write"} else {}
    yield 200, {"description": endpoint.answer, "content": content, **tagged}
    if endpoint.tags == "read":
        yield 304, {"description": "The client's copy is current.", "headers": _ETAG}
    named = (404,) if endpoint.in_path.model_fields else ()
    written = (404, 412, 507) if endpoint.tags in {"write", "batch"} else ()
    for status in sorted({*_ALWAYS, *named, *written, *endpoint.problems}):
        yield (
            status,
            {
                "description": usual_type(status).detail,
                "content": {PROBLEM: {"schema": _ref("Problem"), "example": examples.problem(status)}},
                **_problem_headers(status),
            },
        )


def _problem_headers(status: int) -> dict[str, Any]:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        what, schema, name = "seconds", {"type": "integer"}, "Retry-After"
    elif status == HTTPStatus.UNAUTHORIZED:
        what, schema, name = "the scheme that is wanted", {"type": "string"}, "WWW-Authenticate"
    else:
        return {}
    return {"headers": {name: {"description": what, "schema": schema, "required": True}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def _schemas(answers: Iterable[type[Any]]) -> dict[str, Any]:
    types = {Problem, *_EDITS, *answers}
    _, schemas = msgspec.json.schema_components(sorted(types, key=lambda each: each.__name__), ref_template=_REF)
    whole = {each.__name__ for each in Answer.__subclasses__()}
    for name, schema in schemas.items():
        _describe(schema)
        if name in whole:
            # Their defaults are for clients, of what an older Sluice does not say.
            schema["required"] = list(schema["properties"])
            for each in schema["properties"].values():
                each.pop("default", None)
    schemas |= _bodies()
    for edit in _EDITS:
        properties = schemas[edit.__name__]["properties"]
        properties["reason"]["maxLength"] = MAX_REASON
        if "ttl_s" in properties:
            properties["ttl_s"] |= _TTL
        if "name" in properties:
            properties["name"]["minLength"] = 1
    schemas["SetLimit"]["properties"]["limit"] = _ref("Limit")
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
    "description": "seconds until the edit expires; default: never",
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
    limit |= {"title": "Limit", "description": "A limit, with the keys of the configuration file."}
    definitions: dict[str, Any] = limit.pop("$defs", {})
    put = {
        **limit,
        "title": "PutLimit",
        "description": "The whole limit; it replaces the previous one.",
        "properties": {**limit["properties"], "reason": _REASON, "ttl_s": _TTL},
    }
    patch_ttl = {
        **_TTL,
        "description": "as in PutLimit; `null`: never expires. Not given: expires when the active edit would have",
    }
    patch: dict[str, Any] = {
        **put,
        "title": "PatchLimit",
        "description": "The fields to change; the others are kept. `null` removes a field.",
        "properties": {
            **{key: _or_null(schema) for key, schema in limit["properties"].items()},
            "reason": _REASON,
            "ttl_s": patch_ttl,
        },
    }
    return {
        **definitions,
        "Limit": limit,
        "PatchLimit": patch,
        "PutLimit": put,
        "PutSwitch": _object({"limiting": {"type": "boolean"}, "reason": _REASON, "ttl_s": _TTL}, ["limiting"]),
        "Revert": _object(
            {
                "reason": _REASON,
                "force": {
                    "type": "boolean",
                    "default": False,
                    "description": "even if it was changed again since",
                },
            }
        ),
        "Batch": _object(
            {
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_EDITS,
                    "items": {"oneOf": [_ref(each.__name__) for each in _EDITS]},
                },
                "reason": {**_REASON, "description": "reason of edits that have none"},
            },
            ["edits"],
        ),
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what may also be taken away; it has no default."""
    schema = {key: value for key, value in schema.items() if key != "default"}
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    either: dict[str, Any] = {key: schema.pop(key) for key in ("description", "title") if key in schema}
    return {"anyOf": [schema, {"type": "null"}], **either}


def _object(properties: dict[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": list(required)} if required else schema
