"""Connects a fleet member to Redis. ``limiter.fleet`` builds the requests.

If a round trip fails or takes longer than half a second, the connections are closed, so that a late response cannot be
mistaken for the response to another call. The next round trip opens new connections. coredis does not retry, because
members repeat their requests anyway.
"""

import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from itertools import islice
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import structlog
import trio

from limiter.fleet.member import Call, Member, WhenAway, key_of, members_in
from limiter.rules.rule import NS_PER_S
from proxy.control import FleetError
from proxy.stats.snapshot import MAX_FLEET_LIMITS, FleetLimit, FleetMember, FleetState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from coredis import Redis, RedisCluster

    _Client = Redis[bytes] | RedisCluster[bytes]

_log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 0.5
_FIRST_S: Final = 1.1
#: If a Sentinel or node hangs, there must be time left to try the next one.
_NODE_S: Final = 0.3
_LOG_EVERY_NS: Final = 10 * NS_PER_S
_READ_EVERY_NS: Final = NS_PER_S // 2
#: After Redis restarts empty, all members have called again within this time.
_SETTLED_NS: Final = NS_PER_S
#: A fleet edit takes up to two seconds to reach all members.
_DIFFERS_NS: Final = 5 * NS_PER_S
_PUBLISHED_S: Final = 60
_MAX_PUBLISHED: Final = 1000
_MAX_DISAGREEMENTS: Final = 10
_MAX_MEMBER_CHARS: Final = 48
_MAX_TEXT_CHARS: Final = 200
_SCRIPT: Final = files("limiter.fleet").joinpath("bucket.lua").read_text()
_ADD_EDITS: Final = files("limiter.fleet").joinpath("edits.lua").read_text()
_SHA: Final = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """How to connect to the fleet's Redis.

    Attributes:
        service: the primary's name in Sentinel.
        url: URL without secrets, shown to operators.
        user: empty for the default user.
        password_file: file that is read for each connection. If None, ``password`` is used.
        size_file: file that saves the number of members, for starts while Redis is unreachable.
    """

    name: str
    member: str
    kind: Literal["server", "sentinel", "cluster"]
    nodes: Sequence[tuple[str, int]]
    service: str = ""
    database: int = 0
    url: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str | None = None
    tls: ssl.SSLContext | None = None
    when_away: WhenAway = "last"
    size_file: Path | None = None


class _Errand:
    def __init__(self, do: "Callable[[_Client], Awaitable[Any]]") -> None:
        self.do, self.done = do, trio.Event()
        self.has_begun = False
        self.answer: Any = None
        self.error = ""


class Fleet:
    """A member of a fleet, and its connection to Redis.

    Attributes:
        error: why the last round trip failed, and what to do about it. Empty if it succeeded.
    """

    def __init__(self, config: FleetConfig, *, now_ns: Callable[[], int]) -> None:
        # This import takes half a second, so it must precede the first round trip.
        import coredis  # noqa: PLC0415 - only fleets need it

        logging.getLogger(coredis.__name__).setLevel(logging.CRITICAL + 1)
        # Each process needs a new name, because Redis ignores calls with lower numbers than before.
        member = f"{config.member[:_MAX_MEMBER_CHARS]}#{token_hex(4)}"
        self._size, self._size_ns = _read_size(config.size_file), now_ns()
        self.member = Member(config.name, member, now_ns(), config.when_away, self._size)
        self.member.wake = self._wake  # type: ignore[method-assign]
        self.error = ""
        self._config, self._now_ns = config, now_ns
        self._round_trips = self._failures = 0
        self._woken = trio.Event()
        self._first: trio.CancelScope | None = None
        self._logged_ns: int | None = None
        self._not_logged = 0
        self._errands: list[_Errand] = []
        self._edits_changed = trio.Event()
        self._members: dict[str, int] = {}
        self._read_ns: int | None = None
        self._known: set[str] = set()  # members last logged
        self._logged: set[str] = set()  # disagreements already logged
        self._theirs: dict[str, tuple[float, float]] | None = None  # limits of the member that disagrees
        self._published_ns: int | None = None

    async def begin(self) -> None:
        """Make an initial round trip, so that permits are available for the first clients. Takes up to about 1 s."""
        with trio.move_on_after(_FIRST_S) as self._first:
            await self.run()
        self._first = None

    async def run(self) -> None:
        """Make round trips until cancelled. After an internal error, act as if Redis were unreachable."""
        while True:
            try:
                await self._talk()
            except Exception as error:  # noqa: BLE001 - traffic must continue after any error
                now_ns = self._now_ns()
                self.member.failed(now_ns)
                self._note_failure(
                    now_ns, f"an internal error in Sluice ({type(error).__name__}: {error}); please report it"
                )
                await trio.sleep(_TIMEOUT_S)

    async def _talk(self) -> None:
        calls = await self._due()
        reason = ""
        # One scope for the client and its round trips, so that a late round trip also closes the client.
        trip = trio.CancelScope(deadline=trio.current_time() + _TIMEOUT_S)
        try:
            with trip:
                async with _connected(self._config, self._failures) as client:
                    while True:
                        await self._round_trip(client, calls, trip)
                        trip.deadline = inf
                        calls = await self._due()
                        trip.deadline = trio.current_time() + _TIMEOUT_S
        except* Exception as errors:  # noqa: BLE001 - traffic must continue after any error
            reason = _reason(errors)
        finally:
            # This runs on cancellation, too.
            now_ns = self._now_ns()
            self.member.failed(now_ns)
        if reason == _BY_TYPE["AuthenticationRequiredError"] and (self._config.password or self._config.password_file):
            reason = _SENTINELS_ASK
        if trip.cancel_called or not reason:
            is_new = self._config.tls is not None and self.member.answered_ns is None
            reason = _LATE + (f"; {_NO_TLS}" if is_new else "")
        self._note_failure(now_ns, reason)

    def _wake(self) -> None:
        self._woken.set()

    async def _due(self) -> list[Call]:
        while True:
            self._woken = trio.Event()
            now_ns = self._now_ns()
            calls = self.member.ask(now_ns)
            if calls or self._errands:
                return calls
            next_ns = self.member.next_ns()
            with trio.move_on_after(inf if next_ns is None else max(0, next_ns - now_ns) / NS_PER_S):
                await self._woken.wait()

    async def _round_trip(self, client: "_Client", calls: list[Call], trip: trio.CancelScope) -> None:
        self._round_trips += 1
        if calls:
            await self._ask(client, calls)
        while self._errands:
            errand = self._errands[0]
            errand.has_begun = True
            trip.deadline = trio.current_time() + _TIMEOUT_S
            errand.answer = await errand.do(client)
            # The caller may have given up and removed the errand.
            self._errands = [each for each in self._errands if each is not errand]
            errand.done.set()
        if self.error:
            self.error = ""
            _log.info("fleet Redis reachable again", url=self._config.url, members=self.member.members)

    async def _ask(self, client: "_Client", calls: list[Call]) -> None:
        from coredis.exceptions import NoScriptError  # noqa: PLC0415 - see __init__

        answers = await _evaluate(client, calls)
        unknown = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            more = await _evaluate(client, [calls[index] for index in unknown], is_new=True)
            for index, answer in zip(unknown, more, strict=True):
                answers[index] = answer
        now_ns, version = self._now_ns(), self.member.edits_version
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, BaseException):
                self.member.take(now_ns, call, answer)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if self.member.edits_version != version:
            self._edits_changed.set()
        if self._first is not None:
            self._first.cancel()
        self._note_size(now_ns)
        self._compare_limits(now_ns)

    def _note_size(self, now_ns: int) -> None:
        size = self.member.members
        if size != self._size:
            self._size, self._size_ns = size, now_ns
            if self._config.size_file is not None:
                # Write in the background, because a hanging disk must not delay the round trips.
                trio.lowlevel.start_thread_soon(partial(self._config.size_file.write_text, str(size)), lambda _: None)
        elif size != len(self._known) and now_ns - self._size_ns >= _SETTLED_NS:
            self._errands.append(_Errand(self._read_members))

    async def _read_members(self, client: "_Client") -> None:
        now_ns = self._now_ns()
        if self._read_ns is not None and now_ns - self._read_ns < _READ_EVERY_NS:
            return
        self._members = dict(members_in(await client.hgetall(key_of(self._config.name, "members"))))
        self._read_ns = now_ns
        members, known = set(self._members), self._known
        if now_ns - self._size_ns < _SETTLED_NS or members == known:
            return
        self._known = members
        if not known:
            _log.info("joined the fleet", fleet=self._config.name, members=sorted(members))
            return
        for name in sorted(members ^ known):
            event = "fleet member joined" if name in members else "fleet member left"
            _log.info(event, fleet=self._config.name, member=name, members=len(members))

    def _compare_limits(self, now_ns: int) -> None:
        texts = self._disagreements(now_ns)
        for text in texts:
            if text not in self._logged:
                _log.warning(text, fleet=self._config.name)
        if self._logged and not texts:
            _log.info("fleet disagreement resolved", fleet=self._config.name)
        self._logged = self._logged | {*texts} if texts else set()
        if not self.member.other:
            self._theirs = self._published_ns = None
        elif self._published_ns is None or now_ns - self._published_ns >= NS_PER_S:
            self._errands.append(_Errand(self._publish_limits))
            self._published_ns = now_ns

    async def _publish_limits(self, client: "_Client") -> None:
        mine, theirs = (key_of(self._config.name, f"limits:{each}") for each in (self.member.member, self.member.other))
        await client.hset(mine, {"": msgspec.json.encode(dict(islice(self.member.figures.items(), _MAX_PUBLISHED)))})
        await client.expire(mine, _PUBLISHED_S)
        with suppress(msgspec.MsgspecError):
            self._theirs = _limits.decode((await client.hmget(theirs, [""]))[0] or b"")

    def _disagreements(self, now_ns: int) -> tuple[str, ...]:
        since_ns, other, ours, theirs = self.member.differs_ns, self.member.other, self.member.figures, self._theirs
        if since_ns is None or now_ns - since_ns < _DIFFERS_NS:
            return ()
        theirs = ours if theirs is None else theirs
        keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        texts = tuple(_disagreement(key, ours.get(key), theirs.get(key), other) for key in keys)
        return texts[:_MAX_DISAGREEMENTS] or (
            f"members disagree about the fleet's limits; compare them with those of {other}",
        )

    def _note_failure(self, now_ns: int, reason: str) -> None:
        self._failures += 1
        self.error = reason
        for errand in self._errands:
            errand.error = reason
            errand.done.set()
        self._errands = []
        if self._logged_ns is None or now_ns - self._logged_ns >= _LOG_EVERY_NS:
            _log.warning(
                "fleet Redis unavailable",
                url=self._config.url,
                reason=reason,
                when_away=self._config.when_away,
                not_logged=self._not_logged,
            )
            self._logged_ns, self._not_logged = now_ns, 0
        else:
            self._not_logged += 1
        if self._first is not None and self.member.away_since_ns is not None:
            self._first.cancel()

    async def leave(self) -> None:
        """Return all permits to the fleet. Make no decisions afterwards."""
        if self.member.answered_ns is None or self.error:
            return
        with trio.move_on_after(_TIMEOUT_S, shield=True):
            try:
                async with _connected(self._config, self._failures) as client:
                    await _evaluate(client, self.member.leave(self._now_ns()))
            except* Exception as errors:  # noqa: BLE001 - other members notice after 3 s
                _log.warning("could not return permits to the fleet on shutdown", reason=_reason(errors))

    async def read(self) -> FleetState:
        """Return the fleet's state. If Redis is unreachable, the list of members may be outdated."""
        with suppress(FleetError):
            await self._ask_for(self._read_members)
        return self.state()

    async def edits_changed(self, known: bytes | None) -> None:
        while self.member.edits_version in {None, known}:
            self._edits_changed = trio.Event()
            await self._edits_changed.wait()

    async def read_edits(self) -> dict[bytes, bytes]:
        key = key_of(self._config.name, "edits")
        fields: dict[bytes, bytes] = await self._ask_for(lambda client: client.hgetall(key))
        self.member.edits_version = fields.get(b"", b"")
        return fields

    async def write_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        pairs = [each for pair in fields.items() for each in pair]
        args: list[str | bytes | int] = [known, len(removed), *removed, *pairs]
        keys = [key_of(self._config.name, "edits")]
        return bool(await self._ask_for(lambda client: client.eval(_ADD_EDITS, keys, args)))

    async def _ask_for(self, do: "Callable[[_Client], Awaitable[Any]]") -> Any:
        if self.error or self.member.answered_ns is None:
            raise FleetError(self.error or "Redis has not responded yet")
        errand = _Errand(do)
        self._errands.append(errand)
        self._wake()
        with trio.move_on_after(2 * _TIMEOUT_S) as waiting:
            await errand.done.wait()
        if waiting.cancelled_caught and errand in self._errands:
            self._errands.remove(errand)
            raise FleetError(_LATE, sent=errand.has_begun)
        if errand.error:
            raise FleetError(errand.error, sent=errand.has_begun)
        return errand.answer

    def state(self, *, whole: bool = True) -> FleetState:
        now_ns, member = self._now_ns(), self.member
        # Compare times by Redis's clock, because its offset from ours is unknown.
        latest_us = max(self._members.values(), default=0)
        since_read_s = 0.0 if self._read_ns is None else (now_ns - self._read_ns) / NS_PER_S
        last_contact_s = None if member.answered_ns is None else (now_ns - member.answered_ns) / NS_PER_S

        def seen_s_ago(name: str, seen_us: int) -> float:
            # The last contact is more recent than the list of members.
            if name == member.member and last_contact_s is not None:
                return last_contact_s
            return (latest_us - seen_us) / 1e6 + since_read_s

        return FleetState(
            name=self._config.name,
            member=member.member,
            url=self._config.url,
            when_away=self._config.when_away,
            size=member.members,
            members=tuple(
                FleetMember(name, seen_s_ago(name, seen_us), name == member.member)
                for name, seen_us in sorted(self._members.items() if whole else ())
            ),
            last_contact_s_ago=last_contact_s,
            away_s=None if member.away_since_ns is None else (now_ns - member.away_since_ns) / NS_PER_S,
            error=self.error,
            round_trips=self._round_trips,
            failures=self._failures,
            disagreements=self._disagreements(now_ns),
            limits=tuple(
                FleetLimit(kind, name, dimension, each.rate_per_s, each.share, each.permits, each.asked_per_s)
                for each in (member.state(MAX_FLEET_LIMITS) if whole else ())
                for dimension, kind, name in [each.key.split(":", 2)]
            ),
        )


_limits: Final = msgspec.json.Decoder(dict[str, tuple[float, float]])


def _disagreement(key: str, here: tuple[float, float] | None, there: tuple[float, float] | None, member: str) -> str:
    dimension, kind, name = key.split(":", 2)
    is_burst = here is not None and there is not None and here[0] == there[0]
    unit = (" bytes" if dimension == "bytes" else "") + ("" if is_burst else "/s")
    ours, theirs = ("none" if each is None else f"{_figure(each[is_burst])}{unit}" for each in (here, there))
    what = f"members disagree about the {'burst' if is_burst else 'rate'} of {kind} {name}"
    is_one = "none" in {ours, theirs}
    effect = "give all members the same limits" if is_one else "the effective limit is between the two"
    return f"{what}: {ours} here, {theirs} on {member}; {effect}"


def _figure(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _read_size(file: Path | None) -> int:
    try:
        return 1 if file is None else max(1, int(file.read_text()))
    except (OSError, ValueError):
        return 1


@asynccontextmanager
async def _connected(config: FleetConfig, attempt: int) -> "AsyncGenerator[_Client]":
    """Yield a client. Each attempt starts with a different node."""
    from coredis import Redis, RedisCluster, Sentinel  # noqa: PLC0415 - see Fleet
    from coredis.connection import TCPLocation  # noqa: PLC0415 - as above
    from coredis.retry import NoRetryPolicy  # noqa: PLC0415 - as above

    password = config.password
    if config.password_file is not None:
        password = (await trio.Path(config.password_file).read_text()).strip()
    first = attempt % len(config.nodes)
    nodes = [TCPLocation(*node) for node in (*config.nodes[first:], *config.nodes[:first])]
    secure: dict[str, Any] = {"ssl_context": config.tls}
    same: dict[str, Any] = secure | {"username": config.user or None, "password": password or None}
    quick: dict[str, Any] = {"connect_timeout": _NODE_S, "stream_timeout": _NODE_S}
    never = NoRetryPolicy()
    async with AsyncExitStack() as stack:
        client: _Client
        if config.kind == "cluster":
            how = same | {"connect_timeout": _NODE_S}
            client = RedisCluster(
                startup_nodes=nodes, skip_full_coverage_check=True, retry_policy=never, verify_version=False, **how
            )
        elif config.kind == "sentinel":
            sentinel = Sentinel(nodes, sentinel_kwargs=quick | secure, retry_policy=never, **same)
            client = (await stack.enter_async_context(sentinel)).primary_for(config.service, db=config.database)
        else:
            (host, port), *_ = config.nodes
            client = Redis(
                host, port, db=config.database, max_connections=1, retry_policy=never, verify_version=False, **same
            )
        yield await stack.enter_async_context(client)


async def _evaluate(client: "_Client", calls: Sequence[Call], *, is_new: bool = False) -> list[Any]:
    """Send calls in one round trip. Return a response or an error for each.

    Set ``is_new`` if Redis does not have the script yet. The first call then includes it.
    """
    async with client.pipeline(transaction=False, raise_on_error=False) as pipeline:
        for index, call in enumerate(calls):
            if is_new and index == 0:
                pipeline.eval(_SCRIPT, call.keys, call.args)
            else:
                pipeline.evalsha(_SHA, call.keys, call.args)
    return list(pipeline.results or ())


_LATE: Final = f"no response within {_TIMEOUT_S:g} s; check the load of Redis and the network"
_NO_TLS: Final = "if Redis does not use TLS, fleet.url must start with redis://, sentinel:// or cluster://"
_FOREIGN: Final = "another program uses a key of this fleet ({}); choose another fleet.name"
_NO_RIGHT: Final = "the user lacks a permission ({}); grant it with ACL SETUSER"
_SENTINELS_ASK: Final = "a Sentinel requires a password, which Sluice does not send; remove the Sentinels' requirepass"
#: Explanations, keyed by the type of a coredis or Python exception.
_BY_TYPE: Final = {
    "SSLCertVerificationError": "the certificate of Redis is not trusted ({}); set fleet.ca_file, or correct fleet.url",
    "SSLError": "the TLS handshake failed ({}); if Redis requires a client certificate, set fleet.certificate_file; "
    + _NO_TLS,
    "gaierror": "the host name cannot be resolved ({}); correct fleet.url",
    "ConnectionRefusedError": "connection refused; start Redis, or correct fleet.url",
    "AuthenticationFailureError": "wrong user or password; correct fleet.user and fleet.password_file",
    "AuthenticationRequiredError": "a password is required; set fleet.password_file or SLUICE_FLEET_PASSWORD",
    "AuthorizationError": _NO_RIGHT,
    "ReadOnlyError": "the server is a replica; use the primary's address in fleet.url, or use sentinel://",
    "StalePrimaryError": "the Sentinels still report a primary that is now a replica; a fail-over may be in progress",
    "PrimaryNotFoundError": "no reachable Sentinel knows the service ({}); correct fleet.url",
    "BusyLoadingError": "Redis is still loading its data",
    "WrongTypeError": _FOREIGN,
    "ClusterDownError": "the Cluster is down ({}); check CLUSTER INFO",
}
#: Explanations, keyed by a part of the error's text.
_BY_CODE: Final = {
    "OOM": "Redis is out of memory ({}); raise maxmemory, or set maxmemory-policy",
    "MISCONF": "Redis cannot save its data and refuses writes ({}); check its log",
    "NOREPLICAS": "Redis has too few replicas and refuses writes ({}); start more replicas",
    "MASTERDOWN": "the server is a replica that has lost its primary ({}); use the primary's address in fleet.url",
    "BUSY": "another client's script is blocking Redis ({}); end it with SCRIPT KILL",
    "can't run this command": _NO_RIGHT,
    "user_script:": _FOREIGN,
    "DB index is out of range": "the database does not exist ({}); correct the number at the end of fleet.url",
    "cluster support disabled": "the server does not belong to a Cluster; fleet.url must start with redis:// or rediss://",
    "Connection lost": "the server closed the connection; if it requires TLS, fleet.url must start with rediss://,"
    " sentinel+tls:// or cluster+tls://; if it requires a client certificate, set fleet.certificate_file",
    "unknown command 'HELLO'": "the server is older than Redis 6.0 ({}); upgrade it",
    "unknown command `HELLO`": "the server is older than Redis 6.0 ({}); upgrade it",
    "unknown command": "a command is not supported ({}); check that fleet.url is the address of Redis or Valkey",
}


def _causes(error: BaseException) -> Iterator[BaseException]:
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _causes(inner)
    before = error.__cause__ or error.__context__
    if before is not None:
        yield from _causes(before)
    if not isinstance(error, BaseExceptionGroup):
        yield error


def _reason(error: BaseException) -> str:
    texts = []
    for cause in _causes(error):
        texts.append(" ".join(str(cause).split())[:_MAX_TEXT_CHARS] or type(cause).__name__)
        for told in (_BY_TYPE.get(type(cause).__name__), *(_BY_CODE[each] for each in _BY_CODE if each in texts[-1])):
            if told is not None:
                return told.format(texts[-1])
    return texts[0]
