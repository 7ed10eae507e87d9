"""Sends requests to a sidecar's HTTP API, and formats responses and errors for the operator."""

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from admin.client.target import Target
from admin.client.text import as_json, listing, moment, until
from admin.common.columns import Column
from admin.common.errors import OperatorError, SettingsError
from admin.common.tables import Rows
from admin.config.limit_fields import FIELDS
from admin.edits.model import Change
from admin.edits.wording import difference, target
from admin.wire import BASE, MAX_PAGE, PROBLEM, AuditPage, Changes, FieldProblem, Problem

_WORDS: Final = {"kind": "KIND", "name": "NAME", "rate": "RATE", "ttl_s": "--ttl", "id": "ID"} | {
    each.key: each.flag for each in FIELDS if each.flag
}
_TOLD: Final = ("reload", "reset", "purge")
"""The audit trail shows only the details of these actions, not the old and new limits."""
_LINES: Final = 20
_T = TypeVar("_T")

Worded = Callable[[FieldProblem], str]
"""Formats an error and names its source: a flag, or a line of a file."""


class ApiError(OperatorError):
    """A request failed.

    The exit code is 3 if a precondition failed, 4 if access was denied, 5 if the target does not exist, otherwise 1.
    """

    def __init__(self, lines: str | Sequence[str], exit_code: int = 1) -> None:
        super().__init__(lines)
        self.exit_code = exit_code


class Reply(NamedTuple):
    content: bytes
    url: str

    def read(self, type_: type[_T]) -> _T:
        """Decode the response. Raises ApiError if it does not match ``type_``."""
        try:
            return msgspec.json.decode(self.content, type=type_)
        except msgspec.DecodeError:
            raise ApiError(_strange(self.url, "wrong type")) from None


def by_flag(fault: FieldProblem) -> str:
    # Leave out the index of a list item, because the message contains the item.
    field = fault.field.rpartition(".")[2].partition("[")[0]
    if not field or fault.detail.startswith("unknown kind "):
        return fault.detail
    return f"{_WORDS.get(field) or '--' + field.replace('_', '-')}: {fault.detail}"


def change_lines(change: Change, *, dry_run: bool = False) -> Iterator[str]:
    yield f"{'would change: ' if dry_run else ''}{target(change.target)}: {difference(change)}"
    before = change.before.expires_at if change.before is not None else None
    if change.expires_at is not None:
        as_before = ", as before; use --ttl never to make it permanent" if before == change.expires_at else ""
        yield f"   until {until(change.expires_at)}{as_before}"
    elif before is not None and change.action == "set":
        yield f"   permanent; the previous edit would have expired {until(before)}"
    cleared = {"reset": "cleared", "purge": "purged"}.get(change.action)
    if cleared:
        yield from (f"   {cleared}: {line}" for line in change.details)
        yield f"   change {change.id} by {change.by}"
    elif not dry_run:
        yield from (f"   {line}" for line in change.details)
        where = "" if change.durable else ", lost on restart"
        if change.member:
            where = ", on all members of the fleet"
        elif change.new and change.new.get("fleet"):
            where += ", on this member only; use --fleet to change all members"
        yield f"   change {change.id} by {change.by}{where}; `sluice audit revert {change.id}` undoes it"


class Api(AbstractContextManager["Api"]):
    """A client for a sidecar's API. If ``json`` is set, methods that return text return JSON instead."""

    def __init__(self, target: Target, timeout_s: float = 5.0, *, json: bool = False) -> None:
        self.url, self.json = target.url, json
        self._timeout_s = timeout_s
        self._has_token = target.token is not None
        headers = {"Accept": "application/json, application/problem+json"}
        if target.token is not None:
            headers["Authorization"] = f"Bearer {target.token}"
        # Never send the token to an HTTP proxy named in the environment, or to the target of a redirect.
        self._client = httpx2.Client(
            base_url=target.url, timeout=timeout_s, trust_env=False, headers=headers, verify=_verifying(target)
        )

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, *path: str, **params: Any) -> Reply:
        return self.ask("GET", *path, params=params)

    def ask(
        self,
        method: str,
        *path: str,
        verb: str = "",
        params: Mapping[str, Any] | None = None,
        body: object = None,
        if_match: str = "",
        worded: Worded = by_flag,
    ) -> Reply:
        """Send a request. Raises SettingsError if the request is invalid, or ApiError if it fails for another reason.

        The parts of ``path`` are percent-encoded. ``verb``, such as ``:reset``, is appended to the path. ``if_match``
        is the expected ETag, or ``*`` to require that there is an edit.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if if_match:
            headers["If-Match"] = "*" if if_match == "*" else f'"{if_match.strip(chr(34))}"'
        try:
            response = self._client.request(
                method,
                "/".join([BASE, *map(_quoted, path)]) + verb,
                params={key: "1" if value is True else str(value) for key, value in (params or {}).items() if value},
                content=None if body is None else msgspec.json.encode(body),
                headers=headers,
            )
        except UnicodeEncodeError:
            raise SettingsError("the command line is not valid UTF-8; use only UTF-8 characters") from None
        except httpx2.TimeoutException:
            raise ApiError(f"no response from {self.url} within {self._timeout_s:g} s; is it overloaded?") from None
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        if response.is_success:
            return Reply(response.content, self.url)
        raise self._refused(response, worded)

    def rows(self, *path: str, most: int | None, **params: Any) -> dict[str, Any]:
        """Read up to ``most`` rows of a list, or all rows if ``most`` is None.

        The list is read page by page. The other fields in the result come from the first page.
        """
        whole: dict[str, Any] = {}
        while not whole or len(whole["rows"]) < min(whole["total"], whole["total"] if most is None else most):
            offset = len(whole["rows"]) if whole else 0
            size = MAX_PAGE if most is None else min(MAX_PAGE, most - offset)
            page = self.get(*path, **params, offset=offset, limit=size).read(dict[str, Any])
            if not whole:
                whole = page
            elif page["rows"]:
                whole["rows"] += page["rows"]
                whole["limit"] = len(whole["rows"])
            else:
                break
        return whole

    def batch(
        self,
        edits: Sequence[Mapping[str, Any]],
        *,
        reason: str = "",
        if_match: str = "",
        worded: Worded = by_flag,
        **params: bool,
    ) -> Reply:
        body = {"edits": edits, "reason": reason} if reason else {"edits": edits}
        return self.ask("POST", "limits:batch", params=params, body=body, if_match=if_match, worded=worded)

    def text(self, reply: Reply, lines: Callable[[dict[str, Any]], Iterable[str]]) -> str:
        try:
            return as_json(reply.content) if self.json else "\n".join(lines(reply.read(dict[str, Any])))
        except KeyError as error:
            raise ApiError(_strange(self.url, f"{error} is missing")) from None

    def table(
        self,
        where: str,
        columns: Iterable[Column],
        most: int | None,
        nothing: str,
        *,
        rows_of: Callable[[dict[str, Any]], Iterable[dict[str, Any]]] = lambda row: (row,),
        **params: Any,
    ) -> str:
        """Read a list and format it as a table.

        If the list is empty, return ``nothing``. ``rows_of`` converts a row of the list to rows of the table.
        """
        page = self.rows(where, most=most, **params)
        if self.json:
            return as_json(page)
        found = page["rows"]
        rows = [each for row in found for each in rows_of(row)]
        more = f"\n\n{len(found)} of {page['total']}; --limit N or --all shows more"
        return (listing(columns, rows) if rows else nothing) + (more if 0 < len(found) < page["total"] else "")

    def write(
        self,
        method: str,
        *path: str,
        params: Mapping[str, Any],
        note: Callable[[Change], str] | None = None,
        **how: Any,
    ) -> str:
        """Request a change and return a description of it. ``note`` may return a line to add to the description."""
        reply = self.ask(method, *path, params=params, **how)
        if self.json:
            return as_json(reply.content)
        change = reply.read(Change)
        lines = [*change_lines(change, dry_run=bool(params.get("dry_run")))]
        return "\n".join([*lines, *filter(None, [note(change) if note is not None else ""])])

    def audit(self, most: int, **query: str) -> str:
        changes: list[Change] = []
        before: int | None = None
        while len(changes) < most:
            size = min(MAX_PAGE, most - len(changes))
            page = self.get("audit", **query, before=before, limit=size).read(AuditPage)
            changes += page.changes
            before = page.next
            if before is None:
                break
        if self.json:
            return as_json({"changes": changes, "next": before})
        columns = ("id", "when", "by", "from", "action", "what", "change", "until", "reason")
        table = Rows(columns, map(_audited, changes), right=(0,)).used()
        nothing = "Nothing matches." if any(query.values()) else "Nothing has been changed."
        return "\n".join(table.lines()) if changes else nothing

    def undo(self, edits: Sequence[Mapping[str, str]], what: str, *, dry_run: bool, **how: Any) -> str:
        """Undo edits atomically and return a description of the changes. Raises ApiError if ``edits`` is empty."""
        if not edits:
            raise ApiError(f"nothing to undo: no {what} has an edit", 5)
        reply = self.batch(edits, dry_run=dry_run, **how)
        if self.json:
            return as_json(reply.content)
        changes = reply.read(Changes).changes
        lines = [next(change_lines(each, dry_run=dry_run)) for each in changes[:_LINES]]
        lines += [f"and {len(changes) - _LINES} more"] if len(changes) > _LINES else []
        ids = " to ".join(dict.fromkeys(str(each.id) for each in (changes[0], changes[-1])))
        count = f"{len(changes)} edit{'s' * (len(changes) != 1)}"
        lines.append(f"would undo {count}" if dry_run else f"undid {count}: change {ids} by {changes[0].by}")
        return "\n".join(lines)

    def _unreachable(self, error: Exception) -> ApiError:
        why = re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in why:
            reason = why.rpartition("verify failed: ")[2].partition(" (_ssl")[0]
            return ApiError(
                f"{self.url}: the certificate is not trusted ({reason}); pass its CA's PEM file with --ca-file"
            )
        if self.url.startswith("https:") and re.search(r"\bSSL\b|_ssl\.c", why):
            return ApiError(f"{self.url} does not use TLS; use http://{self.url.removeprefix('https://')}")
        if isinstance(error, httpx2.RemoteProtocolError) and self.url.startswith("http:"):
            return ApiError(f"{self.url} does not speak HTTP ({why}); use https:// if it requires TLS")
        return ApiError(f"no response from {self.url} ({why}); start Sluice, or pass its admin address with --admin")

    def _refused(self, response: httpx2.Response, worded: Worded) -> OperatorError:
        status = response.status_code
        try:
            is_problem = response.headers.get("content-type", "").startswith(PROBLEM)
            problem = msgspec.json.decode(response.content if is_problem else b"", type=Problem)
        except msgspec.DecodeError:
            return ApiError(_strange(self.url, f"status {status}"))
        lines = [*map(worded, problem.errors)]
        match status:
            case 401:
                todo = "another token" if self._has_token else "a token"
                how = f"give {todo} with --token-file, SLUICE_TOKEN or a profile"
                return ApiError(f"{self.url}: {problem.detail.rstrip('.')}; {how}", 4)
            case 403:
                return ApiError(f"{self.url}: {problem.detail}", 4)
            case 404 if all(each.field != "kind" for each in problem.errors):
                return ApiError(lines or problem.detail, 5)
            case 412:
                return ApiError(_stale(problem), 3)
            case 409 if not lines:
                # A later change conflicts with the revert, or there is no spool to purge.
                return ApiError(problem.detail, 3 if response.url.path.endswith("/revert") else 1)
            case 409:
                return SettingsError([problem.detail, *lines])
            case 400 | 404 | 413 | 415 | 422:
                return SettingsError(lines or problem.detail)
        return ApiError(lines or problem.detail)


def _audited(change: Change) -> tuple[str, ...]:
    return (
        str(change.id),
        moment(change.at),
        change.by,
        f"{change.address} at {change.member}" if change.member else change.address,
        change.action if change.reverts is None else f"{change.action} of {change.reverts}",
        target(change.target),
        "; ".join(change.details if change.action in _TOLD else (difference(change), *change.details)),
        moment(change.expires_at),
        change.reason,
    )


def _stale(problem: Problem) -> str:
    if not problem.etag or any(each.edit is not None for each in problem.errors):
        return f"{problem.detail}; check the current state, then run the command again"
    return (
        f"{problem.detail}; the ETag is now {problem.etag}. Check the limit with `sluice limits get`, then use"
        f" --if-match {problem.etag}"
    )


def _quoted(part: str) -> str:
    if not part:
        raise SettingsError("NAME: must not be empty")
    # ``quote`` does not encode dots, but these two names would be relative paths.
    return {".": "%2E", "..": "%2E%2E"}.get(part) or quote(part, safe=":")


def _strange(url: str, what: str) -> str:
    return f"{url}: unexpected response ({what}); check that --admin points to a Sluice of this version"


def _verifying(target: Target) -> ssl.SSLContext:
    if not target.url.startswith("https:"):
        # This context is not used, so do not load the system's certificates, which is slow.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError):
        raise SettingsError(f"{target.ca_file}: not a PEM file with CA certificates; pass one with --ca-file") from None
