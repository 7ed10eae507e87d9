"""Posts the events of a ledger to a webhook, in order, from a thread of its own: nothing waits for the receiver.

What the receiver or the way to it may recover from is tried again, with exponential backoff and jitter, for as long
and as often as ``alerts`` says; what it does not take is given up at once. Which events there are is not decided here.
"""

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import httpx2
import msgspec

from admin.analytics.alerts import Event, Ledger
from admin.common.environment import ENV_WEBHOOK_TOKEN
from admin.common.errors import SettingsError
from admin.common.version import sluice_version

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 300.0
TIMEOUT_S: Final = 10.0
"""To connect, to write, and for the answer to begin; each."""
_AGAIN: Final = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where alerts go.

    Attributes:
        url: ``https://…`` or ``http://…``.
        token: sent as ``Authorization: Bearer``; empty sends none.
    """

    url: str
    token: str = ""

    @property
    def where(self) -> str:
        """The receiver, for messages: without the path, which often is a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


class Failure(NamedTuple):
    """Why an event was not delivered.

    Attributes:
        reason: in words.
        is_final: it will not be taken later either.
        retry_after_s: the pause that the receiver asks for; 0 if it asks for none.
    """

    reason: str
    is_final: bool = False
    retry_after_s: float = 0.0


def read_settings(url: str, token: str) -> WebhookSettings:
    """Check where alerts are to go.

    Args:
        url: of ``--webhook``.
        token: of the environment; empty is none.

    Raises:
        SettingsError: that is no address, or the token would be there for everybody on the way to read.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None or port == 0:
        raise SettingsError("--webhook: must be a URL like https://alerts.example.com/hooks/sluice")
    token = token.strip()
    if not token.isascii() or any(character.isspace() or not character.isprintable() for character in token):
        raise SettingsError(f"{ENV_WEBHOOK_TOKEN}: has characters that no token has; it is one word")
    if token and parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise SettingsError(
            f"--webhook: {ENV_WEBHOOK_TOKEN} would go to {parts.hostname} unencrypted; give an https:// URL"
        )
    return WebhookSettings(url, token)


def backoff_s(attempts: int, jitter: Callable[[], float] = random.random) -> float:
    """Return how long to wait after so many failures: twice as long each time, less a random part of up to a half."""
    longest_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempts - 1, 30))
    return longest_s * (1 - jitter() / 2)


class Webhook:
    """The thread that posts; use it as a context manager.

    Args:
        settings: where to.
        ledger: what.
        drain_s: at the end it goes on for so long, if anything waits.
        transport: in place of the network.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        ledger: Ledger,
        *,
        drain_s: float = 0.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._settings, self._ledger, self._drain_s = settings, ledger, drain_s
        headers = {"Content-Type": "application/json", "User-Agent": f"sluice/{sluice_version()}"}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token}"
        # Nothing follows a redirection: a token goes where it was meant to go.
        self._client = httpx2.Client(timeout=TIMEOUT_S, headers=headers, transport=transport)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sluice-webhook", daemon=True)

    def __enter__(self) -> Self:
        """Begin to send."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send what waits, for a moment; what is left is sent after the next start."""
        changed = self._ledger.changed
        with changed:
            changed.wait_for(lambda: not self._ledger.pending or not self._thread.is_alive(), timeout=self._drain_s)
            self._stopping = True
            changed.notify_all()
        # An answer that is still waited for is not worth more than that: its event is sent again, with the same key.
        self._thread.join(TIMEOUT_S / 5)
        if not self._thread.is_alive():
            self._client.close()

    def send(self, event: Event) -> Failure | None:
        """Post one event once; return why it was not delivered, or None."""
        where = self._settings.where
        content = msgspec.json.encode(event.message)
        try:
            # What the answer says besides its status is not read.
            with self._client.stream(
                "POST", self._settings.url, content=content, headers={"Idempotency-Key": event.key}
            ) as answer:
                status, headers = answer.status_code, answer.headers
        except httpx2.TimeoutException:
            return Failure(f"no answer from {where} within {TIMEOUT_S:g} s")
        except httpx2.HTTPError as error:
            why = re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
            return Failure(f"{where} cannot be reached ({why})")
        except Exception as error:  # noqa: BLE001 - the thread must go on, whatever the address turns out to be
            return Failure(f"{where}: {type(error).__name__}: {error}", is_final=True)
        if 200 <= status < 300:
            return None
        if status >= 500 or status in _AGAIN:
            return Failure(f"{where} answers {status}", retry_after_s=_retry_after_s(headers.get("retry-after", "")))
        hint = " and names another address; give that one with --webhook" if 300 <= status < 400 else ""
        return Failure(f"{where} answers {status}{hint}", is_final=True)

    def _run(self) -> None:
        changed = self._ledger.changed
        while True:
            with changed:
                changed.wait_for(lambda: self._stopping or self._ledger.pending)
                event = self._ledger.head()
                if self._stopping or event is None:
                    return
            self._settle(event, self.send(event))

    def _settle(self, event: Event, failure: Failure | None) -> None:
        delay_s = 0.0
        try:
            if failure is None:
                self._ledger.delivered(event.key)
            elif failure.is_final:
                self._ledger.give_up(event.key, failure.reason)
            else:
                attempts = self._ledger.failed(event.key, failure.reason)
                delay_s = max(backoff_s(max(attempts, 1)), min(failure.retry_after_s, LONGEST_BACKOFF_S))
        except OSError:
            # The disk: the tables have the same trouble and say so.
            delay_s = LONGEST_BACKOFF_S
        self._pause(delay_s)

    def _pause(self, delay_s: float) -> None:
        with self._ledger.changed:
            self._ledger.changed.wait_for(lambda: self._stopping, timeout=delay_s)


def _retry_after_s(text: str) -> float:
    return float(text) if re.fullmatch(r"\d{1,9}", text.strip()) else 0.0


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
