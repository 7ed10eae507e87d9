"""Generates the OpenAPI document from the endpoints and their types."""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec import UNSET

from admin.common.version import sluice_version
from admin.config.limit_fields import Limit
from admin.http.api.routing import Api, Endpoint, EndpointRoute
from admin.wire import BASE, EVENT_STREAM, PROBLEM, Problem, usual_type
from proxy.common.metric import described

_REF: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (400, 401, 403, 405, 408, 413, 415, 421, 500)
_ETAG: Final = {
    "ETag": {"description": "version of the response, for `If-Match`", "schema": {"type": "string"}, "required": True}
}
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
#: Accepts ETags from other servers, which may contain characters that Sluice's ETags do not.
_TAGS: Final = r'^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$'
_TAG_HEADERS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "read": (("If-None-Match", "ETags of the client's copies. The response is 304 if one of them is current"),),
    "write": (
        ("If-Match", "quoted ETags, one of which must be current. `*` requires that there is an active edit"),
        ("If-None-Match", "quoted ETags, none of which may be current. `*` requires that there is no active edit"),
    ),
    "batch": (("If-Match", "ETag that the list of limits must have"),),
}
_PROBLEM_HEADERS: Final = {
    HTTPStatus.SERVICE_UNAVAILABLE: ("Retry-After", "seconds", "integer"),
    HTTPStatus.UNAUTHORIZED: ("WWW-Authenticate", "the required authentication scheme", "string"),
}


@cache
def document(api: Api) -> dict[str, Any]:
    routes = [each for each in api.routes if isinstance(each, EndpointRoute)]
    paths: dict[str, Any] = {}
    for each in routes:
        paths.setdefault(each.path_format, {})[each.about.method.lower()] = _operation(each)
    answers = {route.about.answer for route in routes if route.about.answer is not None}
    bodies = {route.about.body for route in routes if route.about.body is not None}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "summary": "Reads, explains and changes the limits of a broker's topics and queues.",
            "description": "Errors are problem details (RFC 9457), and their `errors` name the invalid fields. Times"
            " are ISO 8601 timestamps in UTC. When a write returns, it is durable and applies to the next request on"
            " every connection.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "version": sluice_version(),
        },
        "servers": [{"url": BASE, "description": "this Sluice"}],
        "paths": paths,
        "components": {
            "schemas": _schemas({*answers, Problem}, {*bodies, Limit}),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "a token with the role read or write"}
            },
        },
        "tags": api.tags,
        # The empty alternative means that a token is optional, because there may be no tokens in the configuration.
        "security": [{"token": []}, {}],
    }


def _operation(route: EndpointRoute) -> dict[str, Any]:
    endpoint = route.about
    parameters = [*_parameters("path", endpoint.in_path), *_parameters("query", endpoint.query)]
    parameters += [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": what,
            "schema": {"type": "string", "pattern": _TAGS},
        }
        for name, what in _TAG_HEADERS.get(endpoint.tags, ())
    ]
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": endpoint.summary,
        "description": endpoint.description,
        "operationId": route.name,
        **({"parameters": parameters} if parameters else {}),
        "responses": {str(status): each for status, each in _responses(endpoint)},
    }
    if endpoint.body is not None:
        content = {"schema": _ref(endpoint.body), "example": endpoint.example}
        fields = msgspec.structs.fields(endpoint.body)
        required = endpoint.tags != "" or any(field.required for field in fields)
        operation["requestBody"] = {"required": required, "content": {"application/json": content}}
    return operation


def _parameters(place: str, model: type[msgspec.Struct]) -> Iterator[dict[str, Any]]:
    _, (schema, *_) = _components([model])
    _describe(schema, model)
    for name, each in schema["properties"].items():
        if each.get("default", "") is None:
            del each["default"]
        yield {
            "name": name,
            "in": place,
            "required": name in schema["required"],
            "schema": each,
            "description": each["description"],
        }


def _responses(endpoint: Endpoint) -> Iterator[tuple[int, dict[str, Any]]]:
    if endpoint.answer is None:
        answer = {"description": "a stream of events", "content": {EVENT_STREAM: {"schema": {"type": "string"}}}}
    else:
        what = _one_line(cleandoc(endpoint.answer.__doc__ or "").partition("\n\n")[0])
        answer = {"description": what, "content": {"application/json": {"schema": _ref(endpoint.answer)}}}
    tagged = {"headers": _ETAG} if endpoint.tags in {"list", "read", "write"} else {}
    yield 200, {**answer, **tagged}
    if endpoint.tags == "read":
        yield 304, {"description": "The client's copy is current.", "headers": _ETAG}
    named = (404,) if msgspec.structs.fields(endpoint.in_path) else ()
    written = (404, 412, 503, 507) if endpoint.tags in {"write", "batch"} else ()
    for status in sorted({*_ALWAYS, *named, *written, *endpoint.problems}):
        response: dict[str, Any] = {
            "description": usual_type(status).detail,
            "content": {PROBLEM: {"schema": _ref(Problem)}},
        }
        if header := _PROBLEM_HEADERS.get(HTTPStatus(status)):
            name, what, kind = header
            response["headers"] = {name: {"description": what, "schema": {"type": kind}, "required": True}}
        yield status, response


def _ref(of: type[Any]) -> dict[str, str]:
    return {"$ref": _REF.format(name=of.__name__)}


def _components(types: Iterable[type[Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    listed = sorted(types, key=lambda each: each.__name__)
    _, schemas = msgspec.json.schema_components(listed, ref_template=_REF)
    return schemas, [schemas[each.__name__] for each in listed]


def _schemas(answers: Collection[type[Any]], bodies: Collection[type[Any]]) -> dict[str, Any]:
    schemas, _ = _components({*answers, *bodies})
    answered = _structs_in(answers)
    structs = _structs_in(bodies) | answered
    for name, schema in schemas.items():
        struct = structs[name]
        _describe(schema, struct)
        if name in answered and not struct.__struct_config__.omit_defaults:
            # Responses always contain all fields, so clients never need the defaults.
            schema["required"] = [
                each.encode_name for each in msgspec.structs.fields(struct) if each.default is not UNSET
            ]
            for each in schema["properties"].values():
                each.pop("default", None)
    schemas["SetLimit"]["properties"]["limit"] = _ref(Limit)
    return dict(sorted(schemas.items()))


def _structs_in(types: Iterable[Any]) -> dict[str, type[msgspec.Struct]]:
    found: dict[str, type[msgspec.Struct]] = {}
    left = list(types)
    while left:
        each = left.pop()
        if not (isinstance(each, type) and issubclass(each, msgspec.Struct)):
            left += get_args(each)
        elif each.__name__ not in found:
            found[each.__name__] = each
            left += get_type_hints(each).values()
    return found


def _describe(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    schema["description"] = _one_line(cleandoc(schema.get("description", "")).partition("\n\nAttributes:\n")[0])
    meanings = _meanings(struct)
    for field in msgspec.structs.fields(struct):
        each = schema["properties"][field.encode_name]
        if "$ref" not in each and field.name in meanings:
            each.setdefault("description", _one_line(meanings[field.name]))


def _meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    meanings = {field: metric.help for field, metric in described(struct)}
    for each in reversed(struct.__mro__):
        _, _, attributes = cleandoc(each.__doc__ or "").partition("\n\nAttributes:\n")
        meanings.update(_ATTRIBUTE.findall(attributes))
    return meanings


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()
