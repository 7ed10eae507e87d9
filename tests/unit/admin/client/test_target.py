from collections.abc import Callable
from pathlib import Path

import pytest

from admin.client.target import Given, Target, find_target, profiles_file
from admin.common.errors import SettingsError

ENVIRONMENT = {"SLUICE_URL": "10.0.0.1:1", "SLUICE_TOKEN": "token-of-the-environment"}
BESIDE = {"SLUICE_ADMIN": "0.0.0.0:7", "SLUICE_ADMIN_TOKEN": "token-of-the-sidecar"}


@pytest.fixture
def profiles(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = profiles_file()
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
        return file

    return write


def secret(file: Path, text: str = "token-of-the-file\n") -> str:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return str(file)


def refused(given: Given, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        find_target(given, environ or {})
    (line,) = caught.value.lines
    return line


class TestAddress:
    def test_is_the_usual_one_by_default(self) -> None:
        assert find_target(Given(), {}) == Target("http://127.0.0.1:9870")
        assert find_target(Given(), ENVIRONMENT).url == "http://10.0.0.1:1"
        assert find_target(Given("10.0.0.2:2"), ENVIRONMENT).url == "http://10.0.0.2:2"

    @pytest.mark.parametrize(
        ("text", "url"),
        [
            ("0.0.0.0:1", "http://127.0.0.1:1"),
            ("[::]:1", "http://[::1]:1"),
            ("http://sluice.example:1/", "http://sluice.example:1"),
            ("https://sluice.example", "https://sluice.example:443"),
            ("https://[2001:db8::1]:9", "https://[2001:db8::1]:9"),
        ],
    )
    def test_is_host_and_port_or_a_url(self, text: str, url: str) -> None:
        assert find_target(Given(text), {}).url == url

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("here", "--admin here: must be"),
            ("ftp://a:1", "--admin ftp://a:1: must begin with http:// or https://"),
            ("http://a:1/page", "--admin http://a:1/page: must be an address"),
            ("http://a:99999", "--admin http://a:99999: "),
            ("http://", "--admin http://: must be an address"),
        ],
    )
    def test_that_is_invalid_names_its_source(self, text: str, said: str) -> None:
        assert refused(Given(text)).startswith(said)

    def test_of_the_environment_is_named_when_it_is_wrong_without_a_password(self) -> None:
        assert refused(Given("http://me:secret@a:1")).startswith("--admin: must be an address")
        for name in ("SLUICE_URL", "SLUICE_ADMIN"):
            assert refused(Given(), {name: "off"}).startswith(f"{name} off: must be")

    def test_with_a_certificate_authority_is_encrypted(self, tmp_path: Path) -> None:
        ca = secret(tmp_path / "ca.pem")
        assert find_target(Given("a:1", ca_file=ca), {}) == Target("https://a:1", None, ca)
        assert find_target(Given("a:1"), {"SLUICE_CA_FILE": ca}).ca_file == ca
        assert refused(Given("a:1", ca_file="/nowhere.pem")).startswith("--ca-file /nowhere.pem: no such file")


class TestToken:
    def test_comes_from_a_file_or_the_environment(self, tmp_path: Path) -> None:
        file = secret(tmp_path / "token")
        assert find_target(Given(token_file=file), ENVIRONMENT).token == "token-of-the-file"
        assert find_target(Given(), ENVIRONMENT).token == "token-of-the-environment"
        assert find_target(Given(), {"SLUICE_TOKEN_FILE": file}).token == "token-of-the-file"

    def test_of_a_sidecars_own_file_is_its_last_word_and_is_not_for_others_to_read(self, tmp_path: Path) -> None:
        file = secret(tmp_path / "token", "# who\nada write token-of-ada\n")
        target = find_target(Given(token_file=file), {})
        assert (target.token, target.warnings) == ("token-of-ada", ())
        assert "token-of" not in repr(target)
        Path(file).chmod(0o644)
        (warning,) = find_target(Given(token_file=file), {}).warnings
        assert warning == f"--token-file {file}: other users can read it; run chmod 600 {file}"

    def test_that_goes_unencrypted_over_a_network_gets_a_warning(self) -> None:
        (warning,) = find_target(Given("10.0.0.1:1"), {"SLUICE_TOKEN": "x"}).warnings
        assert warning.startswith("http://10.0.0.1:1: the token is sent unencrypted")
        assert find_target(Given("localhost:1"), {"SLUICE_TOKEN": "x"}).warnings == ()
        assert find_target(Given("https://10.0.0.1:1"), {"SLUICE_TOKEN": "x"}).warnings == ()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is empty; "),
            ("a\nb\n", "contains more than one line; "),
            ("two words", "contains characters that are not allowed in a token; "),
            ("ada write sha256:00ff", "contains the digest of a token; "),
            ("schlüssel", "contains characters that are not allowed in a token; "),
        ],
    )
    def test_that_is_invalid_is_not_repeated(self, tmp_path: Path, text: str, said: str) -> None:
        file = secret(tmp_path / "token", text)
        line = refused(Given(token_file=file))
        assert line.startswith(f"--token-file {file}: {said}")
        assert not text or text not in line

    def test_an_unreadable_file_is_reported_with_the_reason(self, tmp_path: Path) -> None:
        assert refused(Given(token_file="/nowhere")).startswith("--token-file /nowhere: cannot be read: no such file")
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe")
        assert refused(Given(token_file=str(binary))).startswith(f"--token-file {binary}: not a text file")


class TestBesideASidecar:
    def test_its_own_settings_lead_to_it(self) -> None:
        assert find_target(Given(), BESIDE) == Target("http://127.0.0.1:7", "token-of-the-sidecar")
        assert find_target(Given(), {"SLUICE_ADMIN_LISTEN": "[::]:7"}).url == "http://[::1]:7"

    @pytest.mark.parametrize("name", ["SLUICE_URL", "SLUICE_TOKEN"])
    def test_they_are_unchanged_once_the_environment_is_set_for_commands(self, name: str) -> None:
        target = find_target(Given(), BESIDE | {name: "10.0.0.1:1"})
        assert target.token != "token-of-the-sidecar"
        assert target.url in {"http://10.0.0.1:1", "http://127.0.0.1:9870"}

    def test_its_token_goes_nowhere_else(self, profiles: Callable[[str], Path]) -> None:
        profiles('[prod]\nadmin = "127.0.0.1:9"\n')
        assert find_target(Given("10.0.0.2:2"), BESIDE).token is None
        assert find_target(Given(profile="prod"), BESIDE).token is None
        assert find_target(Given("localhost:8"), BESIDE).token == "token-of-the-sidecar"


class TestProfile:
    def test_has_address_token_and_certificate_authority(self, profiles: Callable[[str], Path]) -> None:
        file = profiles('[prod]\nadmin = "10.0.0.9:9"\ntoken_file = "prod.token"\nca_file = "ca.pem"\n')
        secret(file.parent / "prod.token", "token-of-prod")
        ca = secret(file.parent / "ca.pem")
        expected = Target("https://10.0.0.9:9", "token-of-prod", ca)
        assert find_target(Given(profile="prod"), ENVIRONMENT) == expected
        assert find_target(Given(), {"SLUICE_PROFILE": "prod"}) == expected

    def test_of_the_environment_gives_way_with_its_token(self, profiles: Callable[[str], Path]) -> None:
        profiles('[prod]\nadmin = "10.0.0.9:9"\ntoken = "token-of-prod"\n')
        environ = {"SLUICE_PROFILE": "prod"}
        assert find_target(Given("127.0.0.1:1"), environ) == Target("http://127.0.0.1:1")
        assert find_target(Given(), environ | {"SLUICE_URL": "127.0.0.1:2"}) == Target("http://127.0.0.1:2")

    def test_of_a_flag_may_be_asked_at_another_address(self, profiles: Callable[[str], Path]) -> None:
        profiles('[prod]\nadmin = "10.0.0.9:9"\ntoken = "token-of-prod"\n')
        target = find_target(Given("127.0.0.1:1", profile="prod"), {})
        assert (target.url, target.token) == ("http://127.0.0.1:1", "token-of-prod")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[test]\nadmin = "a:1"\n', "--profile prod: {file} does not contain a table [prod]; its tables: test"),
            ('prod = "a:1"\n', "--profile prod: {file} does not contain a table [prod]; its tables: prod"),
            ('[prod]\nadmin = "a:1"\ntokn = "x"\n', "{file}:3: prod.tokn: unknown; allowed here: admin, token, "),
            ("[prod]\nadmin = 1\n", "{file}:2: prod.admin: must be text in quotes"),
            ("[prod]\n", '{file}:1: prod: admin is missing; add admin = "HOST:PORT"'),
            ('[prod]\nadmin = "here"\n', "{file}:2: prod.admin here: must be"),
            (
                '[prod]\nadmin = "a:1"\ntoken = "x"\ntoken_file = "y"\n',
                "{file}:3: prod.token: conflicts with token_file",
            ),
            (
                '[prod]\nadmin = "a:1"\ntoken = "x y"\n',
                "{file}:3: prod.token: contains characters that are not allowed in a token",
            ),
            ("[prod\n", "{file}:1: not TOML: "),
        ],
    )
    def test_that_is_wrong_names_file_and_line(self, profiles: Callable[[str], Path], text: str, said: str) -> None:
        file = profiles(text)
        assert refused(Given(profile="prod")).startswith(said.format(file=file))

    def test_without_a_file_its_path_is_named(self) -> None:
        line = refused(Given(profile="prod"))
        assert line == f"--profile prod: {profiles_file()} does not exist; create it with a table [prod]"
