import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from admin.client.api import Api, ApiError
from admin.client.target import Target
from admin.common.errors import OperatorError, SettingsError


def failure(url: str, token: str | None = None) -> OperatorError:
    with Api(Target(url, token)) as client, pytest.raises(OperatorError) as caught:
        client.get("state")
    return caught.value


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [(400, 2), (413, 2), (415, 2), (422, 2), (401, 4), (403, 4), (404, 5), (412, 3), (409, 1), (507, 1), (503, 1)],
)
def test_a_problem_ends_with_the_exit_code_of_its_status(
    api: Any, problem: Callable[..., Any], status: int, exit_code: int
) -> None:
    api.answers["GET /state"] = problem(status, "what is wrong")
    error = failure(api.url)
    assert error.exit_code == exit_code
    assert "what is wrong" in error.lines[0]


@pytest.mark.parametrize(
    ("field", "called"),
    [("rate", "RATE"), ("burst_s", "--burst-s"), ("ttl_s", "--ttl"), ("kind", "KIND"), ("name", "NAME"), ("", None)],
)
def test_a_field_is_called_as_on_the_command_line(
    api: Any, problem: Callable[..., Any], field: str, called: str | None
) -> None:
    api.answers["GET /state"] = problem(400, "no", {"field": field, "detail": "must be more"})
    assert failure(api.url).lines == (f"{called}: must be more" if called else "must be more",)


def test_a_missing_token_names_its_sources(api: Any, problem: Callable[..., Any]) -> None:
    api.answers["GET /state"] = problem(401, "a token is needed.")
    assert failure(api.url).lines == (
        f"{api.url}: a token is needed; give a token with --token-file, SLUICE_TOKEN or a profile",
    )
    assert "; give another token with" in failure(api.url, "wrong").lines[0]


def test_a_token_is_sent_and_never_shown(api: Any, problem: Callable[..., Any]) -> None:
    api.answers["GET /state"] = problem(403, "it may only read")
    assert "token-of-ada" not in str(failure(api.url, "token-of-ada"))
    assert api.asked[0].headers["authorization"] == "Bearer token-of-ada"


@pytest.mark.parametrize("answer", [(404, b"not found"), (500, b""), (400, b"{}")])
def test_server_that_is_not_sluice_is_named(api: Any, answer: tuple[int, bytes]) -> None:
    api.answers["GET /state"] = answer
    assert (
        failure(api.url).lines[0].startswith(f"{api.url}: unexpected response (status {answer[0]}); check that --admin")
    )


def test_an_answer_of_another_kind_is_an_error(api: Any) -> None:
    api.answers["GET /state"] = (200, ["x"])
    with Api(Target(api.url)) as client, pytest.raises(ApiError, match=r"unexpected response \(wrong type\)"):
        client.get("state").read(dict[str, int])


def test_a_refused_connection_is_reported_with_a_remedy(reserve: Callable[..., int]) -> None:
    address = f"127.0.0.1:{reserve()}"
    (line,) = failure(f"http://{address}").lines
    assert line == (
        f"no response from http://{address} (Connection refused); start Sluice, or pass its admin address with --admin"
    )


def test_silent_server_times_out(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def request(*_: object, **__: object) -> None:
        raise httpx2.ReadTimeout("timed out")

    monkeypatch.setattr(httpx2.Client, "request", request)
    assert failure(api.url).lines == (f"no response from {api.url} within 5 s; is it overloaded?",)


def test_a_redirection_is_not_followed(api: Any) -> None:
    api.answers["GET /state"] = (302, {})
    assert failure(api.url, "token").lines[0].startswith(f"{api.url}: unexpected response (status 302)")


def test_a_proxy_of_the_environment_is_left_aside(
    api: Any, monkeypatch: pytest.MonkeyPatch, reserve: Callable[..., int]
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{reserve()}")
    api.answers["GET /state"] = (200, {})
    with Api(Target(api.url)) as client:
        assert client.get("state").content == b"{}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b", "a%2Fb"),
        ("a b?#%", "a%20b%3F%23%25"),
        ("ü", "%C3%BC"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("topic:log-*", "topic:log-%2A"),
    ],
)
def test_a_name_of_any_characters_is_one_part_of_a_path(api: Any, name: str, expected: str) -> None:
    api.answers[f"GET /limits/topic/{expected}"] = (200, {"a": 1})
    with Api(Target(api.url)) as client:
        assert client.get("limits", "topic", name).content == b'{"a": 1}'


@pytest.mark.parametrize("name", ["", "\udcff"])
def test_an_invalid_name_is_not_requested(api: Any, name: str) -> None:
    with Api(Target(api.url)) as client, pytest.raises(SettingsError):
        client.get("limits", "topic", name)
    assert api.asked == []


@pytest.mark.parametrize(("given", "sent"), [("abc", '"abc"'), ('"abc"', '"abc"'), ("*", "*")])
def test_an_etag_is_sent_in_quotes(api: Any, given: str, sent: str) -> None:
    api.answers["PUT /state"] = (200, {})
    with Api(Target(api.url)) as client:
        client.ask("PUT", "state", body={}, if_match=given)
    assert api.asked[0].headers["if-match"] == sent


def test_pages_are_read_until_all_is_there(api: Any) -> None:
    def answer(request: Any) -> Any:
        offset, limit = int(request.query.get("offset", 0)), int(request.query["limit"])
        return 200, {"rows": list(range(offset, min(1200, offset + limit))), "total": 1200}

    api.answers["GET /limits"] = answer
    with Api(Target(api.url)) as client:
        for most, count in ((None, 1200), (10, 10), (700, 700)):
            assert client.rows("limits", most=most)["rows"] == list(range(count))


def test_an_untrusted_certificate_names_the_flag(tmp_path: Any) -> None:
    target = Target("https://127.0.0.1:1", None, str(tmp_path / "ca.pem"))
    (tmp_path / "ca.pem").write_text("no certificate", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"ca\.pem: not a PEM file with CA certificates; pass one with --ca-file"):
        Api(target)


def test_server_without_tls_is_named(api: Any) -> None:
    (line,) = failure(f"https://{api.address}").lines
    assert line == f"https://{api.address} does not use TLS; use http://{api.address}"


def test_another_protocol_may_be_encryption() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        (line,) = failure(url).lines
        thread.join()
    # The connection ends before or after the request is read.
    assert line.startswith((f"{url} does not speak HTTP (", f"no response from {url} ("))
