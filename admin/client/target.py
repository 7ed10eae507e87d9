"""Which sidecar to ask, and with which token: from flags, the environment, or a profile.

``profiles.toml`` in the user's configuration directory has a table for each sidecar::

    [orders-1]
    admin = "https://10.0.0.1:9870"
    token_file = "/home/me/.config/sluice/orders-1.token"   # or token = "…"
    ca_file = "/etc/ssl/our-ca.pem"

Flags override a profile named by a flag, that the environment, and that the profile in SLUICE_PROFILE, which is ignored
with its token as soon as --admin or SLUICE_URL names an address.

Without variables of its own, a command uses SLUICE_ADMIN and SLUICE_ADMIN_TOKEN of ``sluice run``, as in a shell in the
sidecar's container. That token goes to no other address.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from admin.common.environment import CLIENT_VARIABLES, ENV_CA_FILE, ENV_PROFILE, ENV_TOKEN, ENV_TOKEN_FILE, ENV_URL
from admin.common.errors import SettingsError
from admin.config.addresses import DEFAULT_ADMIN, WILDCARDS, Endpoint, parse_endpoint

# Settings of ``sluice run`` in such a shell.
_RUN_ADMIN: Final = ("SLUICE_ADMIN", "SLUICE_ADMIN_LISTEN")
_RUN_TOKENS: Final = ("SLUICE_ADMIN_TOKEN",)

_KEYS: Final = ("admin", "token", "token_file", "ca_file")
_TOKEN_LIMIT_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line gave."""

    admin: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A sidecar's admin address, and the access to it.

    Attributes:
        url: ``http://host:port`` or ``https://…``, without a path.
        token: sent with every request; None sends none. In no message and no representation.
        ca_file: PEM file of the certificate authority; None is the system's.
        warnings: for the operator, a line each.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Value:
    """A value and the name of its source."""

    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.source} {self.text}"


def find_target(given: Given, environ: Mapping[str, str]) -> Target:
    """Return where to ask.

    Raises:
        SettingsError: something is invalid; the line names the flag, the variable, or file and line.
    """
    name = given.profile or environ.get(ENV_PROFILE)
    profile: Mapping[str, _Value] = {}
    # Other variables of the environment override a profile that it names.
    by_flag = given.profile is not None
    admin_flag = _flag(given.admin, "--admin")
    admin_env = _variable(environ, ENV_URL)
    beside = not any(environ.get(each) for each in CLIENT_VARIABLES)
    if beside:
        admin_env = next(filter(None, (_variable(environ, each) for each in _RUN_ADMIN)), None)
    if name and (by_flag or (admin_flag is None and admin_env is None)):
        profile = _profile(name, "--profile" if by_flag else ENV_PROFILE)
    admin = admin_flag or profile.get("admin") or admin_env or _Value(DEFAULT_ADMIN, "--admin")
    ca_file = _flag(given.ca_file, "--ca-file") or profile.get("ca_file") or _variable(environ, ENV_CA_FILE)
    url = _url(admin, encrypted=ca_file is not None)
    warnings: list[str] = []
    token = _token(given, environ, profile, warnings)
    if token is None and beside and not by_flag and (admin_flag is None or _is_loopback(url)):
        own = _variable(environ, *_RUN_TOKENS)
        token = None if own is None else _checked(own.text.strip(), own.source)
    if token is not None and url.startswith("http:") and not _is_loopback(url):
        warnings.append(f"{url}: the token goes over the network unencrypted; give the admin address TLS")
    if ca_file is not None and not Path(ca_file.text).is_file():
        raise SettingsError(f"{ca_file}: there is no such file; name the PEM file of who signed the certificate")
    return Target(url, token, None if ca_file is None else ca_file.text, tuple(warnings))


def profiles_file() -> Path:
    """Return the path of the profiles."""
    from platformdirs import user_config_path  # noqa: PLC0415 - most commands name an address instead

    return user_config_path("sluice") / "profiles.toml"


def _flag(text: str | None, flag: str) -> _Value | None:
    return None if text is None else _Value(text, flag)


def _variable(environ: Mapping[str, str], name: str) -> _Value | None:
    return _Value(environ[name], name) if environ.get(name) else None


def _profile(name: str, source: str) -> Mapping[str, _Value]:
    file = profiles_file()
    try:
        text = file.read_text(encoding="utf-8-sig")
        tables: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SettingsError(f"{source} {name}: {file}: cannot be read: {why}; write [{name}] there") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # The message has the place but not the text, which may be a token.
        raise SettingsError(f"{file}:{_line_of(error)}: not TOML: {error}") from None
    from admin.config.toml_lines import find_lines, line_of  # noqa: PLC0415 - only here

    lines = find_lines(text)
    table = tables.get(name)
    if table is None:
        known = ", ".join(sorted(tables)) or "none yet"
        raise SettingsError(f"{source} {name}: no such profile in {file}; there are: {known}")
    if not isinstance(table, dict):
        raise SettingsError(f"{file}:{line_of((name,), lines)}: {name}: must be a table: [{name}]")
    profile = {}
    for key, value in table.items():
        place = f"{file}:{line_of((name, key), lines)}: {key}"
        if key not in _KEYS:
            raise SettingsError(f"{place}: unknown; allowed here: {', '.join(_KEYS)}")
        if not isinstance(value, str) or not value:
            raise SettingsError(f"{place}: must be text in quotes")
        profile[key] = _Value(str(file.parent / Path(value).expanduser()) if key.endswith("_file") else value, place)
    if "token" in profile and "token_file" in profile:
        raise SettingsError(f"{profile['token'].source}: stands beside token_file; give one of them")
    if "admin" not in profile:
        raise SettingsError(f'{file}:{line_of((name,), lines)}: {name}: has no admin; write admin = "HOST:PORT"')
    return profile


def _line_of(error: tomllib.TOMLDecodeError) -> str:
    _, _, where = str(error).partition("line ")
    return where.partition(",")[0] or "1"


def _url(admin: _Value, *, encrypted: bool) -> str:
    try:
        scheme, endpoint = _address(admin.text, encrypted=encrypted)
    except ValueError as error:
        # It may contain a password.
        raise SettingsError(f"{admin.source if '@' in admin.text else admin}: {error}") from None
    if endpoint.host in WILDCARDS:
        # A wildcard address is reached on loopback.
        endpoint = endpoint._replace(host="::1" if endpoint.host == "::" else "127.0.0.1")
    return f"{scheme}://{endpoint}"


def _address(text: str, *, encrypted: bool) -> tuple[str, Endpoint]:
    """Read ``host:port`` or a URL.

    Raises:
        ValueError: it is neither.
    """
    scheme, separator, _ = text.rpartition("://")
    if not separator:
        return "https" if encrypted else "http", parse_endpoint(text)
    if scheme not in {"http", "https"}:
        raise ValueError("must begin with http:// or https://, or be HOST:PORT")
    parts = urlsplit(text)
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        raise ValueError("must be the address alone, like https://10.0.0.1:9870: no user and no path")
    return scheme, Endpoint(parts.hostname, parts.port or (443 if scheme == "https" else 80))


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


def _token(given: Given, environ: Mapping[str, str], profile: Mapping[str, _Value], warnings: list[str]) -> str | None:
    file = _flag(given.token_file, "--token-file")
    token = None
    if file is None:
        token, file = profile.get("token"), profile.get("token_file")
    if file is None and token is None:
        token, file = _variable(environ, ENV_TOKEN), _variable(environ, ENV_TOKEN_FILE)
    if token is not None:
        return _checked(token.text.strip(), token.source)
    return None if file is None else _read_token(file, warnings)


def _read_token(file: _Value, warnings: list[str]) -> str:
    try:
        with Path(file.text).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_TOKEN_LIMIT_BYTES)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SettingsError(f"{file}: cannot be read: {why}; name a file with the token in it") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: not text; name a file with the token in it") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.append(f"{file}: others can read it; run chmod 600 {file.text}")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise SettingsError(f"{file}: is empty; write the token into it")
    if len(lines) > 1:
        raise SettingsError(f"{file}: has several lines; write the one token that is to be used into a file of its own")
    # Lines of a sidecar's token file are NAME ROLE TOKEN.
    return _checked(lines[0][-1] if len(lines[0]) in {1, 3} else " ".join(lines[0]), str(file))


def _checked(token: str, source: str) -> str:
    if token.startswith("sha256:"):
        raise SettingsError(f"{source}: has the digest of a token, which lets nobody in; name the token itself")
    if not token.isascii() or any(character.isspace() or not character.isprintable() for character in token):
        raise SettingsError(f"{source}: has characters that no token has; it is one word")
    return token
