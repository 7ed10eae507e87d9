"""Generates the page of the rejection log's records and of a report's tables."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, get_args

import msgspec

from admin.analytics import resources, tables
from admin.rejection_log import records
from limiter.counting import rejections
from limiter.counting.rejections import Amount, Outcome
from reference import markdown
from reference.markdown import attributes, code, head, one_line, table, value

_SCHEMA_REF: Final = "#/$defs/{name}"
_TIMES: Final = "Times are whole seconds since 1970 UTC. Fields that are `null` or 0 may be omitted."
_SEE: Final = re.compile(r"; see `[\w.]+`")
_MAX: Final = 10**12
_ANY_COUNT: Final = f", at least 0, at most {_MAX}"
_AMOUNT: Final = "`[requests, messages, bytes]`"


def _documented(source: Any) -> dict[str, str]:
    """Return the docstrings of a module's constants, by name."""
    body = ast.parse(inspect.getsource(source)).body
    found: dict[str, str] = {}
    for statement, text in pairwise(body):
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", [])
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found |= {each.id: one_line(str(text.value.value)) for each in targets if isinstance(each, ast.Name)}
    return found


def _meanings(record: type[msgspec.Struct]) -> dict[str, str]:
    """Return the descriptions of the fields of a record and its parts."""
    found: dict[str, str] = {}
    for each in reversed(record.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            found |= attributes(each.__doc__)
    return found


def _record(record: type[msgspec.Struct], left_out: set[str]) -> str:
    (schema,), components = msgspec.json.schema_components([record], ref_template=_SCHEMA_REF)
    properties = components[schema["$ref"].rpartition("/")[2]]["properties"]
    meanings = _meanings(record)
    rows = []
    for each in msgspec.structs.fields(record):
        if each.name in left_out:
            continue
        shown = _AMOUNT if each.type is Amount else markdown.shape(properties[each.name]).replace(_ANY_COUNT, "")
        default = "required" if each.required else value(msgspec.to_builtins(_default_of(each)))
        # One field's text refers to another field.
        what = f"{each.name} requests" if each.name in get_args(Outcome) else meanings[each.name]
        rows.append((code(each.name), shown, default, markdown.null(what).rstrip(".")))
    return table(("field", "value", "default", "meaning"), rows)


def _default_of(each: msgspec.structs.FieldInfo) -> object:
    return each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()


def _column(column: str) -> tuple[str, str]:
    name, _, type_ = column.strip().partition(" ")
    return code(name), code(type_)


def _parts() -> Iterator[str]:
    about = [one_line(text) for text in inspect.cleandoc(records.__doc__ or "").split("\n\n")]
    yield f"{about[0]} This is version {records.VERSION}. {_TIMES}"
    yield f"Counts are at most {_MAX:,}."
    yield "\n\n".join(about[2:])
    words = ", ".join(code(each) for each in get_args(Outcome))
    yield f"{_documented(rejections)['Outcome'].replace('.', f': {words}.', 1)}"
    yield "## Records"
    yield (
        "`type` is one of the following: "
        + ", ".join(code(each.__struct_config__.tag) for each in get_args(records.AnyRecord))
        + "."
    )
    common = {each.name for each in msgspec.structs.fields(records.Record)}
    yield _record(records.Record, set())
    for record in get_args(records.AnyRecord):
        yield f"### `{record.__struct_config__.tag}`\n\n{_SEE.sub('', head(record.__doc__))}"
        if {each.name for each in msgspec.structs.fields(record)} > common:
            yield _record(record, common)
    texts = _documented(tables)
    yield "## Tables of a report"
    yield "\n\n".join(one_line(text) for text in inspect.cleandoc(tables.__doc__ or "").split("\n\n")[1:])
    for made in tables.BY_DAY:
        yield f"### `{made.name}`\n\n{texts[made.name.upper()]}"
        yield table(("column", "type"), (_column(column) for column in made.ddl_columns))
    yield f"### `recommendations`\n\n{_documented(resources)['RECOMMENDATIONS']}"
    yield table(("column", "type"), map(_column, resources.RECOMMENDATIONS.split(",")))


def page() -> str:
    source = "admin/rejection_log/records.py and admin/analytics/tables.py"
    return markdown.page("Rejection log", source, *_parts())
