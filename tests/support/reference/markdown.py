"""Formats Markdown: pages, tables, and JSON schemas and docstrings in words."""

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}


def page(title: str, source: str, *parts: str) -> str:
    """Assemble a page. ``source`` names the code that it is generated from."""
    note = f"<!-- Generated from {source} by `make reference`. Change the code, not this page. -->"
    return "\n\n".join((f"# {title}", note, *(part.strip("\n") for part in parts))) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (_row(head), _row(["---"] * len(head)), *map(_row, rows))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def code(text: object) -> str:
    return f"`{text}`"


def value(given: object) -> str:
    """Format a value so that it is valid in TOML and JSON."""
    return code(json.dumps(given, ensure_ascii=False))


def one_line(text: str) -> str:
    """Remove line breaks and reStructuredText from a docstring."""
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()


def null(text: str) -> str:
    """Replace Python's words with those of JSON."""
    return re.sub(r"\bNone\b", "`null`", text)


def attributes(docstring: str | None) -> dict[str, str]:
    """Return the texts in the Attributes section of a docstring."""
    _, _, section = inspect.cleandoc(docstring or "").partition("Attributes:\n")
    return {name: one_line(what) for name, what in _ATTRIBUTE.findall(section)}


def head(docstring: str | None) -> str:
    """Return the part of a docstring before its sections."""
    return one_line((docstring or "").partition("Attributes:\n")[0])


def shape(schema: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(shape(each) for each in schema[key]))
    if "const" in schema:
        return value(schema["const"])
    if "enum" in schema:
        return ", ".join(value(each) for each in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        if "prefixItems" in schema:
            return "[" + ", ".join(shape(each) for each in schema["prefixItems"]) + "]"
        return f"list of {shape(schema['items'])}" if schema.get("items") else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"table of {shape(inner)}" if isinstance(inner, dict) and inner else "table"
    words = [{"string": "text", "boolean": "true or false"}.get(kind, kind)]
    words += [text.format(_number(schema[key])) for key, text in _BOUNDS.items() if key in schema]
    if "maxLength" in schema:
        words.append(f"at most {schema['maxLength']} characters")
    return ", ".join(words)


def _number(bound: float) -> str:
    return f"{bound:g}" if abs(bound) < 10_000 else str(int(bound))
