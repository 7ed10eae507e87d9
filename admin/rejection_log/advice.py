"""Reads the recommendation for a resource from the newest report's ``recommendations.json``.

The file may be large, so only lines about the resource are decoded.
"""

import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from admin.common.disk import open_to_read, os_error_text
from admin.common.recommendations import VERSION, Recommendation, RecommendationsFile, of_fleet
from admin.config.settings import OFF, ReportSettings
from admin.edits.model import LimitEntry
from admin.rejection_log.history import needle_of, read_with_timeout
from admin.wire import ResourceAdvice
from admin.wire.applying import changed_since, fields_of, no_change_reason, not_applicable_reason, reason_of
from limiter.rules.resource import Resource
from proxy.common.clock import Clock, write_time

USUAL: Final = Path("report", "recommendations.json")
"""The default path, relative to the state directory."""

_LINE_BYTES: Final = 1024 * 1024
_REMAKE: Final = "run `sluice report` again"

_decoder: Final = msgspec.json.Decoder(Recommendation)


class _Found(NamedTuple):
    head: RecommendationsFile
    recommendation: Recommendation | None


class AdviceReader:
    """Reads recommendations. If ``path`` is None, ``why`` is the reason, or empty if the feature is off."""

    def __init__(
        self,
        path: Path | None = None,
        instance: str = "",
        clock: Clock | None = None,
        why: str = "",
        fleet: str = "",
    ) -> None:
        self._path, self._instance, self._clock, self._fleet = path, instance, clock or Clock(), fleet
        self._why = why or 'recommendations are off: report.recommendations = "off"'
        self._limiter = trio.CapacityLimiter(1)

    async def about(self, resource: Resource, entry: LimitEntry) -> ResourceAdvice:
        path = self._path
        if path is None:
            return ResourceAdvice(problem=self._why)
        instance = of_fleet(self._fleet) if self._fleet and entry.limit.get("fleet") else self._instance
        found = await read_with_timeout(partial(_read, path, instance, resource), path, self._limiter)
        if isinstance(found, str):
            return ResourceAdvice(path=str(path), problem=found)
        head, recommendation = found
        period = head.period
        answer = ResourceAdvice(
            path=str(path),
            problem=self._of_others(head) if recommendation is None else None,
            made_at=head.made_at,
            age_s=self._age_s(head.made_at),
            from_at=_iso(period.from_s),
            until_at=_iso(period.until_s),
            recommendation=recommendation,
        )
        if recommendation is None:
            return answer
        why_not = (
            no_change_reason(recommendation)
            or not_applicable_reason(recommendation, entry)
            or changed_since(recommendation, entry)
        )
        if why_not:
            return msgspec.structs.replace(answer, why_not=why_not)
        # Applying a recommendation makes a temporary edit permanent.
        edit = {**fields_of(recommendation, entry), "reason": reason_of(recommendation), "ttl_s": None}
        return msgspec.structs.replace(answer, edit=edit)

    def _of_others(self, head: RecommendationsFile) -> str | None:
        if self._instance in head.instances or not head.instances:
            return None
        more = f" and {len(head.instances) - 3} more" if len(head.instances) > 3 else ""
        return f"{self._path} was made for {', '.join(head.instances[:3])}{more}, not for {self._instance}"

    def _age_s(self, made_at: str) -> float | None:
        try:
            return round((self._clock.utc() - datetime.fromisoformat(made_at)).total_seconds(), 1)
        except (ValueError, TypeError):
            return None


def usual(settings: ReportSettings, state_dir: Path | None) -> tuple[Path | None, str]:
    if settings.recommendations == OFF:
        return None, ""
    if settings.recommendations is not None:
        return Path(settings.recommendations).absolute(), ""
    if state_dir is None:
        return None, "there is no state directory, so there is no default report; set report.recommendations"
    return state_dir / USUAL, ""


def _read(path: Path, instance: str, resource: Resource) -> _Found | str:
    needle = needle_of(resource)
    try:
        with os.fdopen(open_to_read(path), "rb") as file:
            head = msgspec.json.decode(file.readline(_LINE_BYTES).rstrip() + b"]}", type=RecommendationsFile)
            if head.version != VERSION:
                return f"{path}: found version {head.version}, expected {VERSION}; {_REMAKE}"
            while line := file.readline(_LINE_BYTES):
                if needle not in line:
                    continue
                each = _decoder.decode(line.rstrip().rstrip(b","))
                if (each.instance, each.kind, each.name) == (instance, *resource):
                    return _Found(head, each)
            return _Found(head, None)
    except FileNotFoundError:
        return f"there is no report yet: {path} does not exist; create it with `sluice report --out {path.parent}`"
    except IsADirectoryError:
        return f"{path}: this is a folder; give the path of the recommendations.json in it"
    except OSError as error:
        return f"{path}: {os_error_text(error)}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"{path}: not a recommendations.json made by `sluice report`; {_REMAKE}"
    except ValueError:
        return f"{path}: not a valid path"


def _iso(at_s: int | None) -> str | None:
    return None if at_s is None else write_time(datetime.fromtimestamp(at_s, UTC))
