import hashlib
from pathlib import Path

import pytest

from admin.common.errors import SettingsError
from admin.config.addresses import Endpoint, is_loopback
from admin.config.faults import Origins
from admin.config.faults import read as read_table
from admin.config.settings import AdminSettings
from admin.config.sources import Flags, load
from admin.http.auth import MIN_TOKEN_LENGTH, Access, Keyring, read_access
from admin.run.composition import compose

SECRET = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
ORIGINS = Origins(None, {}, {})


def read(**settings: object) -> Access:
    return read_access(read_table(AdminSettings, settings), ORIGINS)


def lines(**settings: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(**settings)
    return list(caught.value.lines)


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a token file, called ``tokens`` in messages."""
    monkeypatch.chdir(tmp_path)
    file = Path("tokens")
    file.touch(0o600)
    return file


def test_a_file_has_names_roles_and_tokens(tokens: Path) -> None:
    tokens.write_text(f"# who\n\nalice write {SECRET}  # since May\n  bob\tread {OTHER}\n", encoding="utf-8")
    access = read(token_file="tokens")
    alice, bob = access.find(SECRET.encode()), access.find(OTHER.encode())
    assert alice is not None
    assert bob is not None
    assert (alice.name, alice.role, alice.source) == ("alice", "write", "tokens:3")
    assert (bob.name, bob.role) == ("bob", "read")
    assert access.warnings == ()


def test_a_file_need_not_hold_the_tokens_themselves(tokens: Path) -> None:
    tokens.write_text(f"alice write sha256:{hashlib.sha256(SECRET.encode()).hexdigest().upper()}\n", encoding="utf-8")
    tokens.chmod(0o644)
    access = read(token_file="tokens")
    assert access.find(SECRET.encode()) is not None
    assert access.find(hashlib.sha256(SECRET.encode()).hexdigest().encode()) is None
    assert access.warnings == ()


def test_settings_have_two_tokens_of_their_own() -> None:
    access = read(token=SECRET, read_token=OTHER)
    assert [(token.name, token.role) for token in access.tokens] == [("token", "write"), ("read_token", "read")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (f"alice {SECRET}", "contains 2 words; a line must be NAME ROLE TOKEN"),
        (SECRET, "contains 1 word; a line must be NAME ROLE TOKEN"),
        (f"alice write {SECRET} extra", "contains 4 words; a line must be NAME ROLE TOKEN"),
        (f"alice admin {SECRET}", "the second word, the role, must be read or write"),
        (
            f"alice write {SECRET[: MIN_TOKEN_LENGTH - 1]}",
            "a token must be at least 24 characters long; make one with `openssl",
        ),
        (f"alice write {SECRET}ä", "contains non-ASCII characters"),
        (f'alice write "{SECRET}"', "a token may contain only letters, digits and"),
        (f"alice write sha256:{SECRET}", "sha256: must be followed by 64 hexadecimal digits"),
        (f"al!ce write {SECRET}", "the name must begin with a letter or digit and"),
        (f"{'a' * 65} write {SECRET}", "the name must begin with a letter or digit and"),
        (f"sluice write {SECRET}", "the name sluice is reserved for the audit trail; choose another name"),
        (f"{SECRET} write alice", "a token must be at least 24 characters long"),
    ],
)
def test_a_faulty_line_is_named_and_its_token_is_not_shown(tokens: Path, line: str, what: str) -> None:
    tokens.write_text(f"# tokens\n{line}\n", encoding="utf-8")
    (told,) = lines(token_file="tokens")
    assert told.startswith(f"tokens:2: {what}")
    assert SECRET[:8] not in told


def test_a_name_or_a_token_that_is_there_twice_is_refused(tokens: Path) -> None:
    tokens.write_text(f"alice write {SECRET}\nalice read {OTHER}\nbob read {SECRET}\n", encoding="utf-8")
    told = lines(token_file="tokens")
    assert told[0] == "tokens:2: the name alice is already used at tokens:1; choose another name"
    assert told[1].startswith("tokens:3: bob has the same token as alice; ")
    assert SECRET not in str(told)


@pytest.mark.parametrize("file", ["absent", "."])
def test_a_file_that_cannot_be_read_is_named(tokens: Path, file: str) -> None:
    del tokens
    (told,) = lines(token_file=file)
    assert told.startswith(f'admin.token_file = "{file}": cannot be read: ')


def test_tokens_that_every_user_can_read_are_warned_about(tokens: Path) -> None:
    tokens.write_text(f"alice write {SECRET}\n", encoding="utf-8")
    tokens.chmod(0o644)
    assert read(token_file="tokens").warnings == (
        "tokens: every user of this machine can read the tokens; run `chmod o-r tokens`",
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "::1", "localhost"])
def test_this_machine_alone_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert read(listen=Endpoint(host, 9870)).tokens == ()


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "*", "192.0.2.1", "::ffff:127.0.0.1", "127.1", "0", "localhost.example", "2001:db8::1"]
)
def test_an_address_that_others_reach_needs_a_token_or_a_word(host: str) -> None:
    assert not is_loopback(host)
    endpoint = Endpoint(host, 9870)
    (told,) = lines(listen=endpoint)
    assert told == (
        f'admin.listen = "{endpoint}": other machines can reach this address, and no token is set; set admin.token_file'
        " (or SLUICE_ADMIN_TOKEN), listen on 127.0.0.1, or set admin.allow_anyone = true"
    )
    (warning,) = read(listen=endpoint, token=SECRET).warnings
    assert warning.startswith(f"admin {endpoint}: tokens are sent unencrypted; ")
    assert read(listen=endpoint, allow_anyone=True).warnings == (
        f"admin {endpoint}: anyone who can reach it can change limits (admin.allow_anyone is true)",
    )


@pytest.mark.parametrize("text", ["short", SECRET + " " + SECRET, "s" * 300])
def test_a_faulty_token_in_the_environment_is_not_shown(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        compose(load(None, {"SLUICE_ADMIN_TOKEN": text}, Flags()))
    (told,) = caught.value.lines
    assert told.startswith("SLUICE_ADMIN_TOKEN: ")
    assert text not in told
    assert text[:8] not in told.removeprefix("SLUICE_ADMIN_TOKEN: ").replace("short", "") or text == "short"


def test_no_token_is_in_the_text_of_settings_and_plan() -> None:
    plan = compose(load(None, {"SLUICE_ADMIN_TOKEN": SECRET}, Flags()))
    digest = hashlib.sha256(SECRET.encode())
    for text in (repr(plan), str(plan.settings), repr(plan.access), str(Keyring(plan.access))):
        assert SECRET not in text
        assert digest.hexdigest() not in text
        assert str(digest.digest()) not in text


def test_a_keyring_reports_changes_by_names_only() -> None:
    keyring = Keyring(read(token=SECRET, read_token=OTHER))
    assert keyring.replace(read(token=SECRET, read_token=OTHER)) == []
    changed = keyring.replace(read(token=OTHER))
    assert changed == ["token read_token: removed", "token token: changed (write)"]
    assert keyring.replace(read(token=OTHER, read_token=SECRET)) == ["token read_token: added (read)"]
