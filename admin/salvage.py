"""What can still be checked of a configuration with faults: all of it but the faulty values.

pydantic reads all or nothing. Here a faulty value is taken out, or something that is allowed is put in its place where
there must be something, so that plug-ins, addresses and rules are looked at in the same run. Who does that asks
``Faulty`` which values are not as they were written, and blames nobody for those. Such settings are never put in force.
What is said of faults is ``admin.faults``.
"""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from admin.settings import UNLIMITED, LimitSettings, Settings
from admin.toml_lines import Path as Place

#: What stands where something must stand, by the first key of the place and the last.
_STAND_INS: Final[dict[tuple[str | int, str | int], str]] = {
    ("listeners", "listen"): "127.0.0.1:1",
    ("listeners", "broker"): "127.0.0.1:1",
    ("limits", "kind"): "unknown",
    ("limits", "name"): "*",
    ("limits", "rate"): UNLIMITED,
    ("defaults", "rate"): UNLIMITED,
    ("handlers", "name"): "unknown",
}
#: What has tables in it: arrays of them, or by kind.
_TABLES: Final = frozenset({"listeners", "limits", "defaults", "handlers"})
#: What a limit can be about in place of a rate.
_LIMITING: Final = frozenset({"rate", "bytes_per_s", "action", "exempt"})


class Faulty:
    """The places of values that are not as they were written.

    Args:
        places: of values and of whole tables.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._places = frozenset(places)

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._places)

    def __contains__(self, place: Place) -> bool:
        """Say whether a value, or a table that it is in, is one of them."""
        return any(place[:length] in self._places for length in range(1, len(place) + 1))

    def keys(self, table: Place) -> frozenset[str]:
        """Return the keys of a table whose values are."""
        return frozenset(str(each[-1]) for each in self._places if each[:-1] == table)


def salvage(data: dict[str, Any], faulty: set[Place]) -> tuple[Settings, list[ErrorDetails]]:
    """Read what is right of a configuration.

    Args:
        data: the configuration; what is wrong in it is taken out.
        faulty: places that are known to be wrong and told of already; those that are found are added.

    Returns:
        The settings, and what is wrong, less what only follows from something else that is.
    """
    for place in list(faulty):
        _take_out(data, place, faulty)
    found: list[ErrorDetails] = []
    while True:
        try:
            return Settings.model_validate(data), found
        except ValidationError as error:
            details = error.errors(include_url=False)
        known = Faulty(faulty)
        found += [detail for detail in details if not _follows(detail, known)]
        for detail in details:
            _take_out(data, detail["loc"], faulty)


def _follows(detail: ErrorDetails, faulty: Faulty) -> bool:
    """Say whether it is only wrong because something was taken out."""
    place = detail["loc"]
    if place[:2] in faulty:
        return True
    # What a limit was to limit may have been in a value that was none, or under a mistyped key.
    keys = faulty.keys(place)
    return detail["type"] == "value_error" and bool(keys & _LIMITING or keys - LimitSettings.model_fields.keys())


def _take_out(data: dict[str, Any], loc: Place, faulty: set[Place]) -> None:
    """Take out the value at a place, or the one that it is an element of; tables of an array keep their places."""
    top: Any = data.get(str(loc[0]))
    if len(loc) == 1 or top is None:
        data.pop(str(loc[0]), None)
        faulty.add(loc[:1])
        return
    if loc[0] not in _TABLES:
        top.pop(loc[1], None)
        faulty.add(loc[:2])
        return
    if not isinstance(top[loc[1]], dict):
        top[loc[1]] = {}
        faulty.add(loc[:2])
    # All that can be wrong with a limit as a whole is that it limits nothing.
    place = loc[:3] if len(loc) > 2 else (*loc, "rate")
    faulty.add(place)
    key = place[2]
    if (stand_in := _STAND_INS.get((loc[0], key))) is not None:
        top[loc[1]][key] = stand_in
    else:
        top[loc[1]].pop(key, None)
