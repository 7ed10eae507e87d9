"""How events are posted: what is tried again, what is not, and that nobody waits for it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest

from admin.analytics.alerts import Event, Ledger, Message
from admin.analytics.webhook import (
    LONGEST_BACKOFF_S,
    Failure,
    Webhook,
    WebhookSettings,
    backoff_s,
    read_settings,
)
from admin.common.errors import SettingsError

URL = "https://alerts.example.com/hooks/secret"
Answer = Callable[[httpx2.Request], httpx2.Response]


def event(number: int = 1) -> Event:
    message = Message(
        event="began",
        storm_id=f"storm-{number}",
        instance="a",
        kind="topic",
        name="orders",
        started_at="2027-01-15T07:59:00Z",
        ended_at=None,
        refused_messages=500,
        peak_refused_per_s=90,
        clients=(),
        producer_groups=(),
        limit_per_s=None,
        report="",
    )
    return Event(key=f"storm-{number}-began", message=message, made_at_s=0.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path, "", lambda: 0.0, lambda _line: None)


def put(ledger: Ledger, *events: Event) -> None:
    with ledger.changed:
        ledger._state.outbox.extend(events)
        ledger.changed.notify_all()


@pytest.mark.parametrize(
    ("url", "where"),
    [(URL, "https://alerts.example.com"), ("http://[::1]:8080/hooks/secret", "http://[::1]:8080")],
)
def test_the_receiver_is_named_without_the_path_which_may_be_a_secret(url: str, where: str) -> None:
    assert read_settings(url, "").where == where


def post(ledger: Ledger, answer: Answer, token: str = "") -> Failure | None:
    webhook = Webhook(WebhookSettings(URL, token), ledger, transport=httpx2.MockTransport(answer))
    return webhook.send(event())


@contextmanager
def posting(ledger: Ledger, answer: Answer, drain_s: float = 30.0) -> Iterator[None]:
    """Post what is in the ledger; no pause between attempts lasts."""

    webhook = Webhook(WebhookSettings(URL), ledger, drain_s=drain_s, transport=httpx2.MockTransport(answer))
    webhook._pause = lambda _delay_s: None
    with webhook:
        yield


def test_post_has_the_event_its_key_and_the_token(ledger: Ledger) -> None:
    seen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(204)

    assert post(ledger, answer, token="t0ken") is None
    (request,) = seen
    assert request.method == "POST"
    assert request.headers["idempotency-key"] == "storm-1-began"
    assert request.headers["authorization"] == "Bearer t0ken"
    assert request.headers["content-type"] == "application/json"
    assert msgspec.json.decode(request.read())["storm_id"] == "storm-1"


@pytest.mark.parametrize("status", [503, 408, 429])
def test_status_that_may_change_is_tried_again(ledger: Ledger, status: int) -> None:
    outcome = post(ledger, lambda _: httpx2.Response(status, headers={"Retry-After": "7"}))
    assert outcome == Failure(f"https://alerts.example.com answers {status}", retry_after_s=7.0)


@pytest.mark.parametrize("status", [401, 404])
def test_status_of_a_wrong_request_is_not_tried_again(ledger: Ledger, status: int) -> None:
    outcome = post(ledger, lambda _: httpx2.Response(status))
    assert outcome == Failure(f"https://alerts.example.com answers {status}", is_final=True)


def test_redirection_is_not_followed(ledger: Ledger) -> None:
    outcome = post(ledger, lambda _: httpx2.Response(302, headers={"Location": "https://elsewhere.example.com"}))
    assert outcome is not None
    assert outcome.is_final


def test_unreachable_receiver_is_tried_again_and_its_path_stays_secret(ledger: Ledger) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("[Errno 111] Connection refused", request=request)

    outcome = post(ledger, answer)
    assert outcome == Failure("https://alerts.example.com cannot be reached (Connection refused)")


def test_silent_receiver_is_tried_again(ledger: Ledger) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("", request=request)

    assert post(ledger, answer) == Failure("no answer from https://alerts.example.com within 10 s")


def test_events_arrive_in_order_each_once_though_some_attempts_fail(ledger: Ledger) -> None:
    seen, arrived = [], []

    def answer(request: httpx2.Request) -> httpx2.Response:
        key = request.headers["idempotency-key"]
        seen.append(key)
        if seen.count(key) < 3:
            return httpx2.Response(503)
        arrived.append(key)
        return httpx2.Response(200)

    put(ledger, event(1), event(2))
    with posting(ledger, answer):
        put(ledger, event(3))
    assert arrived == ["storm-1-began", "storm-2-began", "storm-3-began"]
    assert ledger.pending == 0


def test_what_is_not_wanted_does_not_hold_up_the_rest(ledger: Ledger) -> None:
    arrived = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.headers["idempotency-key"] == "storm-1-began":
            return httpx2.Response(400)
        arrived.append(request)
        return httpx2.Response(200)

    put(ledger, event(1), event(2))
    with posting(ledger, answer):
        pass
    assert len(arrived) == 1


def test_unreachable_receiver_holds_up_nobody_and_its_events_are_kept(ledger: Ledger, tmp_path: Path) -> None:
    tried = threading.Event()

    def answer(_: httpx2.Request) -> httpx2.Response:
        tried.set()
        return httpx2.Response(503)

    put(ledger, event(1))
    with Webhook(WebhookSettings(URL), ledger, transport=httpx2.MockTransport(answer)):
        assert tried.wait(30)
    assert ledger.pending == 1
    again = Ledger(tmp_path, "", lambda: 0.0, lambda _line: None)
    event_kept = again.head()
    assert event_kept is not None
    assert event_kept.key == "storm-1-began"


def test_backoff_doubles_up_to_a_bound_less_a_random_part() -> None:
    assert [backoff_s(attempts, lambda: 0.0) for attempts in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert backoff_s(300, lambda: 0.0) == LONGEST_BACKOFF_S
    assert backoff_s(3, lambda: 1.0) == 2.0


@pytest.mark.parametrize(
    "url", ["alerts.example.com", "ftp://a", "http://", "https://u:p@a/", "http://[::1", "http://a:x"]
)
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="must be a URL"):
        read_settings(url, "")


def test_token_goes_to_nobody_unencrypted() -> None:
    with pytest.raises(SettingsError, match="SLUICE_WEBHOOK_TOKEN would go to alerts"):
        read_settings("http://alerts.example.com/x", "t0ken")
    assert read_settings("http://127.0.0.1:1/x", "t0ken\n").token == "t0ken"
    assert read_settings("http://alerts.example.com/x", "").url == "http://alerts.example.com/x"


def test_token_that_is_no_word_is_refused() -> None:
    with pytest.raises(SettingsError, match="SLUICE_WEBHOOK_TOKEN: has characters"):
        read_settings("https://a/", "two words")
