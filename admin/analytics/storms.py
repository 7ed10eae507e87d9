"""Storms: refusals of one resource without a long pause in between, put together from those of its hours.

Pure: no Spark and no I/O. What is put together is as ``tables.HOURS`` has it in ``storm_parts``, what comes out as
``tables.STORMS``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from admin.analytics.tables import day_of

LISTS: Final = ("rules", "clients", "users", "producer_groups")
_SUMS: Final = ("requests", "messages", "bytes", "refused_seconds")
Row = dict[str, Any]


def storms(
    key: tuple[str, str, str], parts: Iterable[Mapping[str, Any]], *, gap_s: int, newest_s: int, top: int
) -> Iterator[Row]:
    """Yield the storms of one resource, in order of their end.

    Args:
        key: instance, kind and name.
        parts: in order of time; those of limits that only shadow are put together by themselves.
        gap_s: at most so far apart are the refusals of a storm.
        newest_s: the last second that is known of the instance.
        top: so many clients, users and producer groups of a storm are named.
    """
    going: dict[bool, _Storm] = {}
    for part in parts:
        shadow = part["shadow"]
        storm = going.get(shadow)
        if storm is not None and part["start_s"] - storm.last_s > gap_s:
            yield storm.row(key, gap_s, newest_s, top)
            storm = None
        if storm is None:
            storm = going[shadow] = _Storm(part)
        storm.add(part)
    for storm in going.values():
        yield storm.row(key, gap_s, newest_s, top)


class _Storm:
    def __init__(self, first: Mapping[str, Any]) -> None:
        self.shadow: bool = first["shadow"]
        self.start_s: int = first["start_s"]
        self.last_s: int = first["last_s"]
        self._sums = dict.fromkeys(_SUMS, 0)
        self._wait_us = 0
        self._peak_per_s, self._peak_at_s = -1, self.start_s
        self._names: dict[str, Counter[str]] = {each: Counter() for each in LISTS}

    def add(self, part: Mapping[str, Any]) -> None:
        self.last_s = part["last_s"]
        for name in _SUMS:
            self._sums[name] += part[name]
        self._wait_us = max(self._wait_us, part["wait_max_us"])
        if part["peak_per_s"] > self._peak_per_s:
            self._peak_per_s, self._peak_at_s = part["peak_per_s"], part["peak_at_s"]
        for each, counter in self._names.items():
            for named in part[each]:
                counter[named["name"]] += named["messages"]

    def row(self, key: tuple[str, str, str], gap_s: int, newest_s: int, top: int) -> Row:
        messages = self._sums["messages"]

        def ranked(names: Counter[str], most: int | None) -> list[Row]:
            order = sorted(names.items(), key=lambda each: (-each[1], each[0]))[:most]
            return [
                {"name": name, "messages": count, "share": count / messages if messages else 0.0}
                for name, count in order
            ]

        instance, kind, name = key
        return {
            "instance": instance,
            "kind": kind,
            "name": name,
            "shadow": self.shadow,
            "start_s": self.start_s,
            "end_s": self.last_s + 1,
            **self._sums,
            "wait_max_us": self._wait_us,
            "peak_per_s": self._peak_per_s,
            "peak_at_s": self._peak_at_s,
            **{each: ranked(names, None if each == "rules" else top) for each, names in self._names.items()},
            "client_count": len(self._names["clients"]),
            "user_count": len(self._names["users"]),
            "producer_group_count": len(self._names["producer_groups"]),
            "is_open": self.last_s + gap_s >= newest_s,
            "dt": day_of(self.start_s),
        }
