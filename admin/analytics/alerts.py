"""Which storms a webhook is told about, and what is remembered of that; ``webhook`` sends.

Every storm that is going on and is large and long enough makes two events, ``began`` and ``ended``, each of them once,
whatever is restarted, killed or delivered late in between:

- An event is on the disk, in the outbox, before it is sent, and is taken out of it, on the disk, once the receiver has
  said yes. Who is killed between the two sends it again after the start: that is the one way to a second delivery, and
  both carry the same ``Idempotency-Key``.
- A storm is recognised by its resource and by overlapping what was told before. Late records make storms longer or
  join two of them; neither is a storm that begins.
- What is joined after both parts were told about ends for each of them, so that every ``began`` has its ``ended``.

Storms of long ago, as the first run over a folder finds them, are not told. Nothing here sends or knows Spark.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from admin.analytics.findings import Share, Storm
from admin.analytics.words import DAY_S, HOUR_S
from admin.common.disk import replace_durably
from admin.common.errors import StartError

VERSION: Final = 1
"""Version of the ledger."""
MOST_PENDING: Final = 1000
"""Events that wait; beyond that the oldest is given up."""
GIVE_UP_S: Final = 24 * HOUR_S
"""An event that could not be delivered for this long is given up."""
LEAST_REFUSED: Final = 100
"""Messages refused in a storm that is told."""
RECENT_S: Final = HOUR_S
"""A storm is told if its last refusal is at most this long ago."""
_LEAST_S: Final = 10
"""A storm that is told lasts at least this long."""
_KEEP_S: Final = 7 * DAY_S
"""A storm that is over and told is forgotten after this long; one as old as that is told to nobody anyway."""

Name = Literal["began", "ended"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A storm as the tables have it now.

    Attributes:
        storm: itself.
        is_over: records that are late enough have come, and it has not gone on.
        limit_per_s: in force; None is unlimited or not known.
    """

    storm: Storm
    is_over: bool
    limit_per_s: float | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is posted, as JSON. Times are RFC 3339 in UTC, shares are between 0 and 1.

    Attributes:
        event: ``began`` or ``ended``.
        storm_id: the same in both.
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        started_at: first second with a refusal.
        ended_at: end of the last one; None while it goes on.
        refused_messages: so far.
        peak_refused_per_s: most in one second.
        clients: those with the largest shares of the refused messages.
        users: likewise.
        producer_groups: likewise.
        limit_per_s: in force; None is unlimited or not known.
        report: where to read on.
    """

    event: Name
    storm_id: str
    instance: str
    kind: str
    name: str
    started_at: str
    ended_at: str | None
    refused_messages: int
    peak_refused_per_s: int
    clients: tuple[Share, ...]
    users: tuple[Share, ...] = ()
    producer_groups: tuple[Share, ...]
    limit_per_s: float | None
    report: str


class Event(msgspec.Struct, kw_only=True):
    """A message that waits to be sent.

    Attributes:
        key: for ``Idempotency-Key``.
        message: what is sent.
        made_at_s: when it was put here.
        attempts: that failed.
    """

    key: str
    message: Message
    made_at_s: float
    attempts: int = 0


class Alert(msgspec.Struct, kw_only=True):
    """A storm that was told.

    Attributes:
        id: of the storm.
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        start_s: of all that is known to belong to it.
        end_s: likewise.
        has_ended: that was told, too.
    """

    id: str
    instance: str
    kind: str
    name: str
    start_s: int
    end_s: int
    has_ended: bool = False


class _State(msgspec.Struct, kw_only=True):
    version: int = VERSION
    alerts: list[Alert] = []
    outbox: list[Event] = []


class Ledger:
    """What was told and what waits to be; in one file, replaced as a whole. Safe to use from several threads.

    Args:
        directory: made if it is not there.
        link: where the report is, for people.
        wall_clock: seconds since 1970 UTC.
        warn: is told what is given up, in a line.

    Raises:
        StartError: the directory cannot be used.
    """

    def __init__(
        self, directory: Path, link: str, wall_clock: Callable[[], float], warn: Callable[[str], object]
    ) -> None:
        self._path = directory / "ledger.json"
        self._link, self._wall_clock, self._warn = link, wall_clock, warn
        self.changed = threading.Condition()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._state = self._read()
        except OSError as error:
            raise StartError(f"{self._path}: cannot be used: {error.strerror or error}") from None

    @property
    def unfinished(self) -> tuple[Alert, ...]:
        """Storms whose end was not told."""
        with self.changed:
            return tuple(alert for alert in self._state.alerts if not alert.has_ended)

    @property
    def pending(self) -> int:
        """How many events wait."""
        with self.changed:
            return len(self._state.outbox)

    def update(self, sightings: Iterable[Sighting]) -> None:
        """Put what has begun or ended into the outbox.

        Args:
            sightings: at least all storms of the days that have changed, and those of ``unfinished``.

        Raises:
            OSError: it could not be written down.
        """
        with self.changed:
            for sighting in sorted(sightings, key=lambda each: each.storm.start_s):
                self._see(sighting)
            self._forget()
            self._write()
            self.changed.notify_all()

    def head(self) -> Event | None:
        """Return the event that is to be sent next."""
        with self.changed:
            return self._state.outbox[0] if self._state.outbox else None

    def delivered(self, key: str) -> Event | None:
        """Take an event out, since it has arrived, and return it; None if it is not there."""
        with self.changed:
            event = self._find(key)
            if event is not None:
                self._state.outbox.remove(event)
                self._write()
                self.changed.notify_all()
            return event

    def give_up(self, key: str, reason: str) -> None:
        """Take an event out, since it cannot be delivered."""
        event = self.delivered(key)
        if event is not None:
            self._warn(f"webhook: {_words(event)} is given up: {reason}")

    def failed(self, key: str, reason: str) -> int:
        """Count an attempt, and give the event up if it has waited too long.

        Returns:
            how many attempts have failed.
        """
        with self.changed:
            event = self._find(key)
            if event is None:
                return 0
            event.attempts += 1
            age_s = self._wall_clock() - event.made_at_s
            if age_s >= GIVE_UP_S:
                self.give_up(key, f"{reason}, after {event.attempts} attempts in {age_s / HOUR_S:.1f} h")
            else:
                self._write()
            return event.attempts

    def _see(self, sighting: Sighting) -> None:
        storm = sighting.storm
        known = [
            alert
            for alert in self._state.alerts
            if (alert.instance, alert.kind, alert.name) == (storm.instance, storm.kind, storm.name)
            and alert.start_s < storm.end_s
            and storm.start_s < alert.end_s
        ]
        if not known:
            if not self._is_worth_it(storm):
                return
            alert = Alert(
                id=_id(storm),
                instance=storm.instance,
                kind=storm.kind,
                name=storm.name,
                start_s=storm.start_s,
                end_s=storm.end_s,
            )
            self._state.alerts.append(alert)
            self._post("began", alert, sighting)
            known = [alert]
        for alert in known:
            alert.start_s = min(alert.start_s, storm.start_s)
            alert.end_s = max(alert.end_s, storm.end_s)
            if sighting.is_over and not alert.has_ended:
                alert.has_ended = True
                self._post("ended", alert, sighting)

    def _is_worth_it(self, storm: Storm) -> bool:
        return (
            storm.messages >= LEAST_REFUSED
            and storm.end_s - storm.start_s >= _LEAST_S
            and self._wall_clock() - storm.end_s <= RECENT_S
        )

    def _post(self, event: Name, alert: Alert, sighting: Sighting) -> None:
        storm = sighting.storm
        message = Message(
            event=event,
            storm_id=alert.id,
            instance=storm.instance,
            kind=storm.kind,
            name=storm.name,
            started_at=_rfc3339(storm.start_s),
            ended_at=_rfc3339(storm.end_s) if event == "ended" else None,
            refused_messages=storm.messages,
            peak_refused_per_s=storm.peak_per_s,
            clients=storm.clients,
            users=storm.users,
            producer_groups=storm.producer_groups,
            limit_per_s=sighting.limit_per_s,
            report=self._link,
        )
        outbox = self._state.outbox
        outbox.append(Event(key=f"{alert.id}-{event}", message=message, made_at_s=self._wall_clock()))
        if len(outbox) > MOST_PENDING:
            # The first one may be under way.
            self._warn(f"webhook: {_words(outbox.pop(1))} is given up: more than {MOST_PENDING} wait")

    def _find(self, key: str) -> Event | None:
        return next((each for each in self._state.outbox if each.key == key), None)

    def _forget(self) -> None:
        oldest_s = self._wall_clock() - _KEEP_S
        self._state.alerts = [each for each in self._state.alerts if not each.has_ended or each.end_s >= oldest_s]

    def _read(self) -> _State:
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=_State)
        except FileNotFoundError:
            return _State()
        except msgspec.DecodeError as error:
            aside = self._path.with_suffix(".damaged")
            self._path.rename(aside)
            self._warn(f"{self._path}: is damaged ({error}); it is now {aside.name}, and alerts may be sent again")
            return _State()
        if state.version != VERSION:
            raise StartError(
                f"{self._path}: is of version {state.version}, this Sluice writes {VERSION}: use the Sluice that made"
                " it, or remove the file; alerts may then be sent again"
            )
        return state

    def _write(self) -> None:
        replace_durably(self._path, [msgspec.json.encode(self._state)])


def _id(storm: Storm) -> str:
    identity = "\0".join((storm.instance, storm.kind, storm.name, str(storm.start_s)))
    return hashlib.sha256(identity.encode()).hexdigest()[:20]


def _rfc3339(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _words(event: Event) -> str:
    message = event.message
    return f'"{message.event}" of the storm on {message.kind} {message.name} at {message.started_at}'
