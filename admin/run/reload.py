"""Reloads the configuration. The flags and environment stay the same. An invalid configuration changes nothing."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import trio

from admin.common.errors import OperatorError
from admin.config import logs
from admin.config.faults import show
from admin.config.rule_fields import fields_of, target_of
from admin.config.settings import Secret, Settings
from admin.edits.model import Author, FailedReload, ReloadError, ReloadReport, limit_path
from admin.edits.service import EditService
from admin.http.auth import Keyring
from admin.run.composition import Plan
from admin.stats.metrics import Family, gauge
from limiter.rules.rule import Rule, RuleKey
from proxy.common.clock import utc_now, write_time

_log = structlog.get_logger(__name__)

POLL_INTERVAL_S: Final = 1.0

#: Keys and key prefixes that take effect without a restart. Limits are reported as rules.
_AT_ONCE: Final = ("limiting", "log.level", "limits", "defaults")
#: Keys whose changes the keyring reports, because it does not show secrets.
_OF_TOKENS: Final = frozenset({"admin.token", "admin.read_token"})


class Reloader:
    """Reloads the configuration for an ``EditService``.

    Attributes:
        plan: The current configuration, without changes that need a restart.
        failed: Why the last reload failed. None if it succeeded.
    """

    def __init__(self, load: Callable[[], Plan], plan: Plan, edits: EditService, keyring: Keyring) -> None:
        self.plan = plan
        self.failed: FailedReload | None = None
        self._load = load
        self._started = plan.settings
        self._edits = edits
        self._keyring = keyring
        self._one_at_a_time = trio.Lock()

    async def __call__(self, author: Author, dry_run: bool) -> ReloadReport:  # noqa: FBT001 - EditService's one call
        async with self._one_at_a_time:
            try:
                new = await trio.to_thread.run_sync(self._load)
                old = self.plan
                # Read all files before replacing the first certificate.
                read = [await trio.to_thread.run_sync(listener.tls.read) for listener in old.listeners]
                certificates = [line for each in read for line in each.changed]
                if old.certificate is not None and new.certificate is not None:
                    certificates += old.certificate.changed()
                    if not dry_run:
                        old.certificate.reload()
            except OperatorError as error:
                if not dry_run:
                    self.failed = FailedReload(write_time(utc_now()), author.name, error.lines)
                    _log.error(
                        "reload failed: the configuration is invalid; nothing was changed",
                        **_asked_by(author),
                        problems=list(error.lines),
                    )
                raise ReloadError(error.lines) from None
            report = await trio.to_thread.run_sync(self._compare, old, new, certificates)
            if dry_run:
                return report
            self.failed = None
            tokens = tuple(self._keyring.compare(new.access))
            details = (*report.changed, *tokens, *(f"needs a restart: {line}" for line in report.needs_restart))

            def switch_over() -> None:
                for each in read:
                    each.activate()
                self._keyring.replace(new.access)
                if new.settings.log.level != old.settings.log.level:
                    logs.change_level(new.settings.log)
                # The old listeners already have the reloaded certificates.
                self.plan = replace(new, certificate=old.certificate, listeners=old.listeners)

            change = None
            if report.changed or tokens:
                # Do everything in one step, because the caller may be cancelled.
                change = await self._edits.put_rulebook(new.rulebook, author, details, switch_over)
            else:
                switch_over()
            done = msgspec.structs.replace(report, change=change, changed=(*report.changed, *tokens))
            _log_reload(done, author)
            return done

    def _compare(self, old: Plan, new: Plan, certificates: Sequence[str]) -> ReloadReport:
        """Compare two plans. With 50 000 limits, this takes seconds."""
        rules = _changed_rules(old, new)
        return ReloadReport(
            change=None,
            changed=(*rules, *_changed_settings(old.settings, new.settings), *certificates),
            needs_restart=tuple(_needing_restart(self._started, new.settings)),
            warnings=tuple(new.warnings()),
            hidden=tuple(self._hidden(old, new)),
        )

    def _hidden(self, old: Plan, new: Plan) -> Iterator[str]:
        edited = {limit_path(target_of(rule)): rule for rule in self._edits.edited_rules()}
        for key, before, after in _differing(_by_key(old.rulebook.configured), _by_key(new.rulebook.configured)):
            rule = after or before
            edit = edited.get(limit_path(target_of(rule))) if rule is not None else None
            if edit is not None:
                yield f"{key.kind}:{key.pattern}: {edit.source} overrides it with {edit.limit_text}"


def families(reloader: Reloader | None) -> Iterator[Family]:
    if reloader is not None:
        yield gauge(
            "sluice_reload_ok",
            "0 if the last reload failed because the configuration was invalid. The old one still applies.",
            (),
            [((), int(reloader.failed is None))],
        )


def certificate_families(plan: Plan) -> Iterator[Family]:
    yield gauge(
        "sluice_tls_certificate_expiry_timestamp_seconds",
        "Earliest expiry of a certificate and its chain, in seconds since 1970. The side is client or broker if a "
        "listener presents the certificate to clients or to its broker, and admin if it is for the admin address.",
        ("listener", "side"),
        [((each.listener, each.side), each.ends.timestamp()) for each in plan.expiries()],
    )


async def reload_unattended(edits: EditService, author: Author) -> None:
    try:
        await edits.reload(author)
    except ReloadError:
        pass
    except Exception as error:  # noqa: BLE001 - traffic must continue
        _log.error("reload failed: internal error", **_asked_by(author), error=str(error))


async def reload_on_change(
    files: Iterable[str],
    edits: EditService,
    *,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Watch files until cancelled. Reload when a file has changed and then stayed the same for one interval.

    Kubernetes changes mounted ConfigMaps and Secrets without a signal. The wait avoids reading half-written files.
    """
    look = partial(trio.to_thread.run_sync, partial(_look, tuple(files)))
    read = before = await look()
    task_status.started()
    while True:
        await sleep(POLL_INTERVAL_S)
        now = await look()
        if now == before != read:
            read = now
            await reload_unattended(edits, Author("file change"))
        before = now


def _look(files: tuple[str, ...]) -> list[tuple[int, int, int, int] | None]:
    return [_identity(Path(file)) for file in files]


def _identity(file: Path) -> tuple[int, int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _log_reload(report: ReloadReport, author: Author) -> None:
    change = {} if report.change is None else {"change": report.change.id}
    _log.info("configuration reloaded", **_asked_by(author), changed=list(report.changed), **change)
    for line in report.needs_restart:
        _log.warning("changed setting needs a restart", setting=line)
    for line in report.hidden:
        _log.warning("changed limit has no effect", limit=line)
    for line in report.warnings:
        _log.warning(line)


def _asked_by(author: Author) -> dict[str, str]:
    return {"by": author.name} | ({"address": author.address} if author.address else {})


def _changed_rules(old: Plan, new: Plan) -> Iterator[str]:
    for _, before, after in _differing(_by_key(old.rulebook.configured), _by_key(new.rulebook.configured)):
        if before is None and after is not None:
            yield f"{after.name}: added, {after.limit_text}"
        elif after is None and before is not None:
            yield f"{before.name}: removed, was {before.limit_text}"
        elif before is not None and after is not None:
            was, is_now = fields_of(before), fields_of(after)
            fields = ", ".join(
                f"{key} {show(was[key])} -> {show(is_now[key])}" for key in was if was[key] != is_now[key]
            )
            yield f"{after.name}: {fields}"


def _by_key(rules: Iterable[Rule]) -> dict[RuleKey, Rule]:
    return {rule.key: rule for rule in rules}


def _differing(
    old: Mapping[RuleKey, Rule], new: Mapping[RuleKey, Rule]
) -> Iterator[tuple[RuleKey, Rule | None, Rule | None]]:
    for key in dict.fromkeys((*new, *old)):
        before, after = old.get(key), new.get(key)
        if before != after and (before and _said(before)) != (after and _said(after)):
            yield key, before, after


def _said(rule: Rule) -> str:
    return repr(fields_of(rule))


def _changed_settings(old: Settings, new: Settings) -> Iterator[str]:
    if old.limiting != new.limiting:
        yield f"limiting: {show(old.limiting)} -> {show(new.limiting)}"
    if old.log.level != new.log.level:
        yield f"log.level: {show(old.log.level)} -> {show(new.log.level)}"


def _needing_restart(old: Settings, new: Settings) -> Iterator[str]:
    was, is_now = dict(_flat(old)), dict(_flat(new))
    for key in dict.fromkeys((*was, *is_now)):
        at_once = key in _OF_TOKENS or any(key == word or key.startswith((f"{word}.", f"{word}[")) for word in _AT_ONCE)
        if at_once or was.get(key) == is_now.get(key):
            continue
        yield f"{key}: {_shown(was, key)} -> {_shown(is_now, key)}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    if isinstance(values.get(key), Secret):
        return "given"
    return show(values[key]) if values.get(key) is not None else "not set"


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and any(isinstance(inner, msgspec.Struct) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{place}[{index}]")
    else:
        yield place, value
