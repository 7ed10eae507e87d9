"""Tokens for the admin address. Only their SHA-256 digests are kept in memory."""

import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from admin.common.disk import unreadable
from admin.common.errors import SettingsError
from admin.config.addresses import is_loopback
from admin.config.faults import Origins
from admin.config.settings import OFF, AdminSettings

Role = Literal["read", "write"]

MIN_TOKEN_LENGTH: Final = 24
"""In characters. 24 hexadecimal digits are 96 bits."""

TOKEN, READ_TOKEN = "token", "read_token"
LOCAL: Final = "local"
"""Recorded as the author of changes if no tokens are configured."""

_RESERVED: Final = frozenset({LOCAL, "remote", "sluice"})
_HOW: Final = "make one with `openssl rand -hex 24`"
_DIGEST_PREFIX: Final = "sha256:"
_LINE: Final = "a line must be NAME ROLE TOKEN, where ROLE is read or write and `openssl rand -hex 24` prints a TOKEN"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
#: The token syntax of RFC 6750.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_MAX_FILE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Token:
    """A configured token. The role ``write`` includes ``read``. ``digest`` is the SHA-256 of the token's text."""

    name: str
    role: Role
    digest: bytes = field(repr=False)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """The configured tokens. If there are none, access is unrestricted."""

    tokens: tuple[Token, ...] = ()
    warnings: tuple[str, ...] = ()

    def find(self, text: bytes) -> Token | None:
        """Return the token with this text, or None. Tokens are compared in constant time."""
        digest = hashlib.sha256(text).digest()
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


ANYONE: Final = Access()


class Keyring:
    def __init__(self, access: Access = ANYONE) -> None:
        self.access = access

    def replace(self, access: Access) -> list[str]:
        """Replace the tokens, and return a line of text about each change."""
        changed = self.compare(access)
        if changed:
            self.access = access
        return changed

    def compare(self, access: Access) -> list[str]:
        old = {token.name: token for token in self.access.tokens}
        new = {token.name: token for token in access.tokens}
        changed = [f"token {name}: removed" for name in old if name not in new]
        for name, token in new.items():
            if name not in old:
                changed.append(f"token {name}: added ({token.role})")
            elif old[name].digest != token.digest:
                changed.append(f"token {name}: changed ({token.role})")
            elif old[name].role != token.role:
                changed.append(f"token {name}: {old[name].role} -> {token.role}")
        return changed


def read_access(settings: AdminSettings, origins: Origins) -> Access:
    """Read the configured tokens.

    Raises SettingsError with a line for each error. If other machines can reach the address, it is an error to have
    neither tokens nor ``allow_anyone``. Error messages never contain a token.
    """
    if settings.listen == OFF:
        return ANYONE
    problems: list[str] = []
    warnings: list[str] = []
    tokens: list[Token] = []
    if settings.token_file is not None:
        tokens += _read_file(settings.token_file, origins, problems, warnings)
    pairs: tuple[tuple[str, str | None, Role], ...] = (
        (TOKEN, settings.token, "write"),
        (READ_TOKEN, settings.read_token, "read"),
    )
    for key, text, role in pairs:
        if text is not None:
            try:
                digest = _digest(text)
            except ValueError as error:
                problems.append(origins.problem(("admin", key), str(error)))
            else:
                tokens.append(Token(key, role, digest, origins.of(("admin", key))))
    problems += _repeated(tokens)
    exposed = not is_loopback(settings.listen.host)
    if exposed and not tokens and not problems:
        if settings.allow_anyone:
            warnings.append(
                f"admin {settings.listen}: anyone who can reach it can change limits (admin.allow_anyone is true)"
            )
        else:
            problems.append(
                origins.problem(
                    ("admin", "listen"),
                    "other machines can reach this address, and no token is set; set admin.token_file (or "
                    "SLUICE_ADMIN_TOKEN), listen on 127.0.0.1, or set admin.allow_anyone = true",
                    str(settings.listen),
                )
            )
    if exposed and tokens and settings.tls_certificate_file is None:
        warnings.append(
            f"admin {settings.listen}: tokens are sent unencrypted; "
            "set admin.tls_certificate_file and admin.tls_key_file"
        )
    if tokens and all(token.role == "read" for token in tokens):
        warnings.append("admin: no token has the role write, so the admin address is read-only")
    if problems:
        raise SettingsError(problems)
    return Access(tuple(tokens), tuple(warnings))


def _read_file(file: str, origins: Origins, problems: list[str], warnings: list[str]) -> list[Token]:
    place = ("admin", "token_file")
    try:
        with Path(file).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        problems.append(origins.problem(place, f"{unreadable(file, error)}; give a file that contains tokens", file))
        return []
    if len(content) > _MAX_FILE_BYTES:
        problems.append(origins.problem(place, "larger than 1 MiB; give a file that contains tokens", file))
        return []
    tokens: list[Token] = []
    in_the_clear = False
    faults = len(problems)
    for number, line in enumerate(content.splitlines(), 1):
        where = f"{file}:{number}"
        try:
            token = _read_line(line, where)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        if token is not None:
            tokens.append(token)
            in_the_clear = in_the_clear or _DIGEST_PREFIX.encode() not in line
    if not tokens and len(problems) == faults:
        problems.append(origins.problem(place, f"contains no tokens; {_LINE}", file))
    if in_the_clear and mode & stat.S_IROTH:
        warnings.append(f"{file}: every user of this machine can read the tokens; run `chmod o-r {file}`")
    return tokens


def _read_line(line: bytes, where: str) -> Token | None:
    try:
        words = line.decode("ascii").split()
    except UnicodeDecodeError:
        if line.lstrip().startswith((b"#", b"\xef\xbb\xbf#")):
            return None
        raise ValueError(f"contains non-ASCII characters; {_LINE}") from None
    if not words or words[0].startswith("#"):
        return None
    if len(words) > 3 and words[3].startswith("#"):
        words = words[:3]
    if len(words) != 3:
        raise ValueError(f"contains {len(words)} {'word' if len(words) == 1 else 'words'}; {_LINE}")
    name, role, text = words
    if not _NAME.fullmatch(name):
        # Do not show the name. If the words are in the wrong order, it is the token.
        raise ValueError("the name must begin with a letter or digit and contain up to 64 letters, digits and . _ @ -")
    if role not in ("read", "write"):
        raise ValueError("the second word, the role, must be read or write")
    if name in _RESERVED:
        raise ValueError(f"the name {name} is reserved for the audit trail; choose another name")
    return Token(name, "write" if role == "write" else "read", _digest(text), where)


def _digest(text: str) -> bytes:
    if text.startswith(_DIGEST_PREFIX):
        digest = text.removeprefix(_DIGEST_PREFIX)
        if not _DIGEST.fullmatch(digest):
            raise ValueError(
                'sha256: must be followed by 64 hexadecimal digits; `printf %s "$TOKEN" | sha256sum` prints them'
            )
        return bytes.fromhex(digest)
    if not _TOKEN.fullmatch(text):
        raise ValueError(f"a token may contain only letters, digits and . _ ~ + / -; {_HOW}")
    if len(text) < MIN_TOKEN_LENGTH:
        raise ValueError(f"a token must be at least {MIN_TOKEN_LENGTH} characters long; {_HOW}")
    return hashlib.sha256(text.encode()).digest()


def _repeated(tokens: list[Token]) -> list[str]:
    problems = []
    names: dict[str, Token] = {}
    digests: dict[bytes, Token] = {}
    for token in tokens:
        if (earlier := names.setdefault(token.name, token)) is not token:
            problems.append(
                f"{token.source}: the name {token.name} is already used at {earlier.source}; choose another name"
            )
        if (earlier := digests.setdefault(token.digest, token)) is not token:
            problems.append(
                f"{token.source}: {token.name} has the same token as {earlier.name}; give each its own, or remove one"
            )
    return problems
