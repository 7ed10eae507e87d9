"""Finds the sidecar to query and the token for it. See ``docs/live-limits.md``.

Both are looked up in the flags, the profile named by --profile, the environment, and the profile named by
SLUICE_PROFILE, in this order. If --admin or SLUICE_URL is set, SLUICE_PROFILE is ignored.

If no client variable is set, commands use the settings of ``sluice run``: SLUICE_ADMIN and SLUICE_ADMIN_TOKEN. This
helps in a shell in the sidecar's container. That token is never sent to another machine.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from admin.common.disk import unreadable
from admin.common.environment import CLIENT_VARIABLES, ENV_CA_FILE, ENV_PROFILE, ENV_TOKEN, ENV_TOKEN_FILE, ENV_URL
from admin.common.errors import SettingsError
from admin.config.addresses import DEFAULT_ADMIN, WILDCARDS, Endpoint, parse_endpoint

_KEYS: Final = ("admin", "token", "token_file", "ca_file")
_TOKEN_LIMIT_BYTES: Final = 65_536


class Given(NamedTuple):
    admin: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A sidecar's admin address and the credentials for it.

    Attributes:
        url: ``http://host:port`` or ``https://host:port``, without a path.
        ca_file: PEM file with the CAs to trust. If None, the system's CAs are trusted.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    warnings: tuple[str, ...] = ()


class _Value(NamedTuple):
    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.source} {self.text}"


def find_target(given: Given, environ: Mapping[str, str]) -> Target:
    """Find the sidecar to query. Raises SettingsError with a message that names the wrong flag, variable or line."""

    def flag(text: str | None, name: str) -> _Value | None:
        return None if text is None else _Value(text, name)

    def variable(*names: str) -> _Value | None:
        return next((_Value(environ[name], name) for name in names if environ.get(name)), None)

    beside = not variable(*CLIENT_VARIABLES)
    admin = flag(given.admin, "--admin")
    admin_env = variable("SLUICE_ADMIN", "SLUICE_ADMIN_LISTEN") if beside else variable(ENV_URL)
    profile: Mapping[str, _Value] = {}
    if given.profile is not None:
        profile = _profile(given.profile, "--profile")
    elif admin is None and admin_env is None and environ.get(ENV_PROFILE):
        profile = _profile(environ[ENV_PROFILE], ENV_PROFILE)
    admin = admin or profile.get("admin") or admin_env or _Value(DEFAULT_ADMIN, "--admin")
    ca_file = flag(given.ca_file, "--ca-file") or profile.get("ca_file") or variable(ENV_CA_FILE)
    if ca_file is not None and not Path(ca_file.text).is_file():
        raise SettingsError(f"{ca_file}: no such file; pass the PEM file of the CA that signed the certificate")
    url = _url(admin, encrypted=ca_file is not None)
    warnings: list[str] = []
    token, file = None, flag(given.token_file, "--token-file")
    if file is None:
        token, file = profile.get("token"), profile.get("token_file")
    if token is None and file is None:
        token, file = variable(ENV_TOKEN), variable(ENV_TOKEN_FILE)
    if token is None and file is None and beside and not profile and (given.admin is None or _is_loopback(url)):
        token = variable("SLUICE_ADMIN_TOKEN")
    if token is None and file is not None:
        token = _token_in(file, warnings)
    if token is not None:
        _check(token)
        if url.startswith("http:") and not _is_loopback(url):
            warnings.append(f"{url}: the token is sent unencrypted; enable TLS on the admin address")
    secret = None if token is None else token.text.strip()
    return Target(url, secret, None if ca_file is None else ca_file.text, tuple(warnings))


def profiles_file() -> Path:
    from platformdirs import user_config_path  # noqa: PLC0415 - most commands do not use a profile

    return user_config_path("sluice") / "profiles.toml"


def _profile(name: str, source: str) -> Mapping[str, _Value]:
    from admin.config.faults import Origins  # noqa: PLC0415 - as above
    from admin.config.sources import read_toml  # noqa: PLC0415 - as above

    file = profiles_file()
    if not file.exists():
        raise SettingsError(f"{source} {name}: {file} does not exist; create it with a table [{name}]")
    tables, lines = read_toml(str(file))
    origins = Origins(str(file), lines, {})
    table = tables.get(name)
    if not isinstance(table, dict):
        known = ", ".join(sorted(tables)) or "none yet"
        raise SettingsError(f"{source} {name}: {file} does not contain a table [{name}]; its tables: {known}")
    profile = {}
    for key, value in table.items():
        if key not in _KEYS or not isinstance(value, str) or not value:
            what = "must be text in quotes" if key in _KEYS else f"unknown; allowed here: {', '.join(_KEYS)}"
            raise SettingsError(origins.problem((name, key), what))
        path = str(file.parent / Path(value).expanduser()) if key.endswith("_file") else value
        profile[key] = _Value(path, origins.problem((name, key), "")[:-2])
    if "token" in profile and "token_file" in profile:
        raise SettingsError(origins.problem((name, "token"), "conflicts with token_file; set only one of them"))
    if "admin" not in profile:
        raise SettingsError(origins.problem((name,), 'admin is missing; add admin = "HOST:PORT"'))
    return profile


def _url(admin: _Value, *, encrypted: bool) -> str:
    try:
        scheme, endpoint = _address(admin.text, encrypted=encrypted)
    except ValueError as error:
        # An address with an @ may contain a password, so do not show it.
        raise SettingsError(f"{admin.source if '@' in admin.text else admin}: {error}") from None
    if endpoint.host in WILDCARDS:
        endpoint = endpoint._replace(host="::1" if endpoint.host == "::" else "127.0.0.1")
    return f"{scheme}://{endpoint}"


def _address(text: str, *, encrypted: bool) -> tuple[str, Endpoint]:
    scheme, separator, _ = text.rpartition("://")
    if not separator:
        return "https" if encrypted else "http", parse_endpoint(text)
    if scheme not in {"http", "https"}:
        raise ValueError("must begin with http:// or https://, or be HOST:PORT")
    parts = urlsplit(text)
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        raise ValueError("must be an address like https://10.0.0.1:9870, without a user or path")
    return scheme, Endpoint(parts.hostname, parts.port or (443 if scheme == "https" else 80))


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


def _token_in(file: _Value, warnings: list[str]) -> _Value:
    try:
        with Path(file.text).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_TOKEN_LIMIT_BYTES)
    except OSError as error:
        why = unreadable(file.text, error)
        raise SettingsError(f"{file}: {why}; pass a file that contains the token") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: not a text file; pass a file that contains the token") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.append(f"{file}: other users can read it; run chmod 600 {file.text}")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) != 1:
        found = "contains more than one line" if lines else "is empty"
        raise SettingsError(f"{file}: {found}; pass a file that contains only the token to use")
    (words,) = lines
    return _Value(words[-1] if len(words) in {1, 3} else " ".join(words), str(file))


def _check(token: _Value) -> None:
    text = token.text.strip()
    if text.startswith("sha256:"):
        raise SettingsError(f"{token.source}: contains the digest of a token; give the token itself")
    if not text.isascii() or any(character.isspace() or not character.isprintable() for character in text):
        raise SettingsError(
            f"{token.source}: contains characters that are not allowed in a token; a token is a single ASCII word"
        )
