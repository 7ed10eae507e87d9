"""The HTTP API of one sidecar: requests, ETags, and problems as messages for the operator.

A problem names a field of the request. The caller says what the operator typed for it: a flag, or a line of a file.
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from admin.client import NoAnswerError, NotFoundError, NotPermittedError, RefusedError, StaleError
from admin.client.target import Target
from admin.common.errors import OperatorError
from admin.wire import BASE, MAX_PAGE, PROBLEM, FieldProblem, Problem

TIMEOUT_S: Final = 5.0
LONG_TIMEOUT_S: Final = 60.0
"""For many edits, or a reload."""

_WORDS: Final = {"kind": "KIND", "name": "NAME", "rate": "RATE", "ttl_s": "--ttl", "id": "ID"}

_T = TypeVar("_T")


Name = Callable[[FieldProblem], str]
"""Returns the operator's name for the place of a fault."""


def flag(fault: FieldProblem) -> str:
    """Name a field as an argument or a flag of the command line."""
    if fault.detail.startswith("no kind "):
        # The detail says what it is about.
        return ""
    field = fault.field.rpartition(".")[2] if fault.edit is not None else fault.field
    # The value says which of several it is.
    field = field.partition("[")[0]
    return _WORDS.get(field) or ("--" + field.replace("_", "-") if field else "")


class Reply:
    """An answer.

    Attributes:
        content: JSON.
        etag: without quotes; empty if there is none.
    """

    def __init__(self, content: bytes, etag: str, url: str) -> None:
        self.content, self.etag, self._url = content, etag, url

    def read(self, type_: type[_T]) -> _T:
        """Decode it.

        Raises:
            NoAnswerError: it is of another type.
        """
        try:
            return msgspec.json.decode(self.content, type=type_)
        except msgspec.DecodeError:
            raise NoAnswerError(_strange(self._url, "something else than was asked for")) from None

    def json(self) -> str:
        """Return it indented."""
        return as_json(self.content)


def as_json(content: bytes | object) -> str:
    """Format JSON, or a value as JSON, for people and scripts."""
    raw = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return msgspec.json.format(raw, indent=2).decode()


def path(*parts: str | int) -> str:
    """Return the path of a resource of the API; names may hold any characters.

    Raises:
        RefusedError: a part is empty, or not text.
    """
    quoted = []
    for part in map(str, parts):
        if not part:
            raise RefusedError("NAME: must not be empty")
        try:
            # URL parsers fold only these two.
            quoted.append({".": "%2E", "..": "%2E%2E"}.get(part) or quote(part, safe=":"))
        except UnicodeEncodeError:
            raise RefusedError(f"{part!r}: is not text") from None
    return "/".join([BASE, *quoted])


class Api:
    """The API of one sidecar; use it as a context manager."""

    def __init__(self, target: Target, timeout_s: float = TIMEOUT_S) -> None:
        self.url = target.url
        self._timeout_s = timeout_s
        self._has_token = target.token is not None
        headers = {"Accept": "application/json, application/problem+json"}
        if target.token is not None:
            headers["Authorization"] = f"Bearer {target.token}"
        # No proxy of the environment between commands and their sidecar, and no redirection: a token goes where it was
        # meant to.
        self._client = httpx2.Client(
            base_url=target.url, timeout=timeout_s, trust_env=False, headers=headers, verify=_verifying(target)
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close its connections."""
        self._client.close()

    def get(self, where: str, params: Mapping[str, Any] | None = None, *, name: Name = flag) -> Reply:
        """Read something."""
        return self.ask("GET", where, params=params, name=name)

    def ask(
        self,
        method: str,
        where: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        if_match: str = "",
        name: Name = flag,
    ) -> Reply:
        """Send one request.

        Args:
            method: of HTTP.
            where: see ``path``.
            params: of the query, without empty ones.
            body: sent as JSON; None sends none.
            if_match: the expected ETag without quotes; ``*`` is any edit, empty is no condition.
            name: names the fields for the operator.

        Raises:
            OperatorError: with its exit code.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if if_match:
            headers["If-Match"] = "*" if if_match == "*" else f'"{if_match.strip(chr(34))}"'
        try:
            content = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise RefusedError("what was given is not text") from None
        given = _query(params or {})
        try:
            response = self._client.request(method, where, params=given, content=content, headers=headers)
        except httpx2.TimeoutException:
            what = f"no answer from {self.url} within {self._timeout_s:g} s; is it overloaded?"
            raise NoAnswerError(what) from None
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        if response.is_success:
            return Reply(response.content, response.headers.get("etag", "").strip('"'), self.url)
        raise self._refused(response, name)

    def pages(self, where: str, params: Mapping[str, Any], most: int | None) -> Iterator[Reply]:
        """Read a list page by page, up to ``most`` rows (None: all)."""
        offset = 0
        while most is None or offset < most:
            size = MAX_PAGE if most is None else min(MAX_PAGE, most - offset)
            reply = self.get(where, {**params, "offset": offset, "limit": size})
            yield reply
            offset += size
            if offset >= reply.read(_Counted).total:
                return

    def events(self, params: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
        """Yield each event's name and JSON, until the sidecar ends the stream.

        Raises:
            OperatorError: it cannot be followed, or no longer.
        """
        given = _query(params)
        # A comment comes every ten seconds.
        timeout = httpx2.Timeout(self._timeout_s, read=_SILENCE_S)
        try:
            with self._client.stream("GET", path("events"), params=given, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise self._refused(response, flag)
                event = ""
                for line in response.iter_lines():
                    if line.startswith("event:"):
                        event = line.removeprefix("event:").strip()
                    elif line.startswith("data:"):
                        yield event, line.removeprefix("data:").strip().encode()
        except httpx2.TimeoutException:
            raise NoAnswerError(f"no answer from {self.url} within {_SILENCE_S:g} s; is it overloaded?") from None
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> NoAnswerError:
        why = re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in why:
            reason = why.rpartition("verify failed: ")[2].partition(" (_ssl")[0]
            return NoAnswerError(
                f"{self.url} is not trusted ({reason}): name the PEM file of who signed its certificate with --ca-file"
            )
        if self.url.startswith("https:") and re.search(r"\bSSL\b|_ssl\.c", why):
            return NoAnswerError(f"no TLS at {self.url}: write http://{self.url.removeprefix('https://')}")
        if isinstance(error, httpx2.RemoteProtocolError) and self.url.startswith("http:"):
            return NoAnswerError(f"{self.url} speaks no HTTP ({why}): write https:// if it has TLS")
        return NoAnswerError(
            f"nobody answers at {self.url} ({why}): start `sluice run`, or name its admin address with --admin"
        )

    def _refused(self, response: httpx2.Response, name: Name) -> OperatorError:
        status = response.status_code
        problem = None
        if response.headers.get("content-type", "").startswith(PROBLEM):
            try:
                problem = msgspec.json.decode(response.content, type=Problem)
            except msgspec.DecodeError:
                problem = None
        if problem is None:
            return NoAnswerError(_strange(self.url, str(status)))
        lines = [f"{place}: {each.detail}" if (place := name(each)) else each.detail for each in problem.errors]
        match status:
            case 401:
                what = problem.detail.rstrip(".")
                todo = "another token" if self._has_token else "a token"
                return NotPermittedError(
                    f"{self.url}: {what}; give {todo} with --token-file, SLUICE_TOKEN or a profile"
                )
            case 403:
                return NotPermittedError(f"{self.url}: {problem.detail}")
            case 404 if any(each.field == "kind" for each in problem.errors):
                return RefusedError(lines)
            case 404:
                return NotFoundError(lines or problem.detail)
            case 412:
                return StaleError(_stale(problem))
            case 400 | 413 | 415 | 422:
                return RefusedError(lines or problem.detail)
            case 409 if lines:
                # A reload of an invalid configuration.
                return RefusedError([problem.detail, *lines])
            case 409:
                # A later change has overtaken the one to revert.
                return StaleError(problem.detail)
            case _:
                return NoAnswerError(lines or problem.detail)


_SILENCE_S: Final = 30.0


def _stale(problem: Problem) -> str:
    """Say what is active instead of what was expected, and what to do."""
    if not problem.etag or any(each.edit is not None for each in problem.errors):
        return f"{problem.detail}: look at it again, and run this once more"
    return (
        f"{problem.detail}; its ETag is {problem.etag} now: look at it with `sluice limits get`, then give"
        f" --if-match {problem.etag}"
    )


class _Counted(msgspec.Struct):
    total: int


def _query(params: Mapping[str, Any]) -> dict[str, str]:
    given = {key: value for key, value in params.items() if value is not None and value is not False and value != ""}
    return {key: "1" if value is True else str(value) for key, value in given.items()}


def _strange(url: str, what: str) -> str:
    return f"{url} answers {what}: name the admin address of a Sluice of this version with --admin"


def _verifying(target: Target) -> ssl.SSLContext:
    if not target.url.startswith("https:"):
        # Without TLS nothing is loaded, which would take time.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError):
        raise RefusedError(f"{target.ca_file}: no PEM file of certificates; name one with --ca-file") from None
