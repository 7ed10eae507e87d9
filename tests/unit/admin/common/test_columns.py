"""Columns name existing fields, and fields that tables can be sorted by."""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from admin.common.columns import COLUMNS, CONNECTIONS, FILTERS, LIMITS, sort_words
from admin.stats.connections import KEYS as CONNECTION_KEYS
from admin.stats.rows import FILTERED, SORTED_BY
from admin.wire import FleetShare, RefusedClient, Row
from proxy.flow.credit import StageState
from proxy.spool.figures import SpooledResource
from proxy.stats.snapshot import ConfirmState, ConnectionState, FleetMember, LinkState

ROWS = {
    "limits": Row,
    "connections": ConnectionState,
    "links": LinkState,
    "senders": ConnectionState,
    "refused_clients": RefusedClient,
    "stages": StageState,
    "confirms": ConfirmState,
    "fleet-members": FleetMember,
    "fleet-limits": FleetShare,
    "spooled": SpooledResource,
}


def has(kind: Any, path: list[str]) -> bool:
    """Say whether a type has a field, or a field of a field."""
    if not path or kind is Any:
        return True
    origin = get_origin(kind)
    if origin is Annotated:
        return has(get_args(kind)[0], path)
    if origin in (Union, UnionType):
        return any(has(each, path) for each in get_args(kind) if each is not type(None))
    if origin is not None and issubclass(origin, Mapping):
        return has(get_args(kind)[1], path[1:])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and path[0] in kind.__struct_fields__:
        return has(get_type_hints(kind, include_extras=True)[path[0]], path[1:])
    return False


@pytest.mark.parametrize("table", COLUMNS)
def test_each_column_has_a_name_of_its_own_and_a_field(table: str) -> None:
    columns = COLUMNS[table]
    assert len({each.name for each in columns}) == len(columns)
    for each in columns:
        assert has(ROWS[table], each.field.split(".")), each.field


def test_ordered_columns_are_sortable() -> None:
    assert set(sort_words(LIMITS)) == set(SORTED_BY)
    assert set(sort_words(CONNECTIONS)) == set(CONNECTION_KEYS)
    assert set(FILTERS) == set(FILTERED)
