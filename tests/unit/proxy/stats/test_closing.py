"""The list of reasons for ended connections, compared with the code that ends them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from reference.closing import CLOSING_REASONS

import proxy

ENDING = {"Close", "_close", "_close_after_probe", "dismiss", "finish", "over", "part"}
"""Functions called with a reason and a detail."""
MADE = {"broker_closed", "broker_error", "client_closed", "client_error"}
"""Reasons composed of a peer and an event."""


def nodes() -> Iterator[ast.AST]:
    for file in Path(proxy.__file__).parent.rglob("*.py"):
        yield from ast.walk(ast.parse(file.read_text()))


def test_every_reason_that_the_code_gives_is_described() -> None:
    given = {
        node.args[0].value
        for node in nodes()
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in ENDING
        and len(node.args) == 2
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(given) > 20
    assert given <= CLOSING_REASONS.keys()


def test_nothing_is_described_that_the_code_does_not_give() -> None:
    written = {node.value for node in nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert CLOSING_REASONS.keys() - written <= MADE


def test_they_are_in_alphabetical_order() -> None:
    assert list(CLOSING_REASONS) == sorted(CLOSING_REASONS)
