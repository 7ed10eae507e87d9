"""Requests 9002 and 9003, which let clients read and change Sluice's limits over the broker's protocol.

Some brokers have a limiter with the same requests, and tools for it also work with Sluice.

- 9002 returns all limits as JSON (``_Limits``).
- 9003 sets the limit of ``topic`` to ``topicLimitQps``. The body of the answer is empty.

The limit on a consumer group's retries is named after the retry topic, ``%RETRY%group``. Sluice differs from those
brokers: a limit of 0 refuses all messages, a limit can be set before the first request for its name, and defaults
cannot be changed.
"""

import math
import re
from collections.abc import Callable
from typing import Final

import msgspec

from limiter.rules.rule import MAX_RATE_PER_S
from proxy.common.admission import in_networks
from proxy.control import LimitCommandReply
from proxy.protocols.base import CommandRequest, CommandStatus
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.refusals import VERSION
from proxy.protocols.rocketmq.wire.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    KIND_RETRY_GROUP,
    KIND_TOPIC,
    MAX_NAME_CHARS,
    RETRY_PREFIX,
    LocalProtocolError,
    RemoteProtocolError,
    RequestCode,
    ResponseCode,
)
from proxy.protocols.rocketmq.wire.command import MAX_DECODED_HEADER_BYTES, RemotingCommand, decode_header, encode
from proxy.protocols.rocketmq.wire.frame import Header

MAX_OPEN_OF_CONNECTION: Final = 8
UNLIMITED_QPS: Final = -1.0
"""Represents an unlimited rate, because JSON has no infinity."""

_SHOWN: Final = frozenset({KIND_TOPIC, KIND_RETRY_GROUP})
_VIEW: Final = RequestCode.VIEW_SEND_RATE_LIMITS.value
# Names that the broker allows (``TopicValidator``). They contain no wildcards.
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
# Settings in 9003 that Sluice cannot change, each with the values that mean "unchanged".
_DEFAULTS: Final = {"disabled": ("",), "defaultLimitQps": ("", "-1.0", "-1"), "sendMsgBackLimitQps": ("", "-1.0", "-1")}
_RATES_ALLOWED: Final = f"a number of messages per second between 0 (which refuses everything) and {MAX_RATE_PER_S}"
_NAMES_ALLOWED: Final = (
    f"a topic name or {RETRY_PREFIX}GROUP, at most {MAX_NAME_CHARS} characters (letters, digits, % | - _)"
)


class _Limit(msgspec.Struct, gc=False):
    topic: str
    limitQps: float  # noqa: N815 - the wire's name
    lastNeedWaitMicrosecs: int  # noqa: N815 - the wire's name
    lastRateLimitTimestamp: int  # noqa: N815 - the wire's name


class _DataVersion(msgspec.Struct):
    """RocketMQ's ``DataVersion``, which clients compare to detect changes."""

    counter: int  # version of the rule set
    stateVersion: int = 0  # noqa: N815 - the wire's name
    timestamp: int = 0


class _Limits(msgspec.Struct):
    dataVersion: _DataVersion  # noqa: N815 - the wire's name
    topicRateLimitList: list[_Limit]  # noqa: N815 - the wire's name


class _Asker(msgspec.Struct):
    opaque: int
    oneway: bool


class _BadFieldError(Exception):
    pass


_encode_limits = msgspec.json.Encoder().encode


class LimitCommandReader:
    def __init__(self, address: str, options: RocketMQOptions, ask: Callable[[CommandRequest], CommandStatus]) -> None:
        self.open = 0
        self._address = address
        self._options = options
        self._ask = ask

    def take(self, header: Header, raw: bytes, header_type: int) -> bytes | None:
        """Handle a request with code 9002 or 9003.

        Returns:
            The answer, or empty bytes if it follows later. None if the request must be forwarded to the broker.
        """
        caller = _Asker(header.opaque, header.flag & FLAG_ONEWAY != 0)
        what, option = ("read", "remote_view_from") if header.code == _VIEW else ("change", "remote_update_from")
        networks = getattr(self._options, option)
        if not in_networks(self._address, networks):
            remark = f"{self._address} may not {what} limits: the listener's option {option} is {networks}"
            return _answer(caller, ResponseCode.NO_PERMISSION, remark)
        ask = CommandRequest("view_limits", handle=caller)
        if header.code != _VIEW:
            try:
                ask = _read_update(raw, header_type, caller)
            except _BadFieldError as error:
                return _answer(caller, ResponseCode.INVALID_PARAMETER, str(error))
        asked = self._ask(ask) if self.open < MAX_OPEN_OF_CONNECTION else "full"
        if asked == "nobody":
            return None
        if asked == "full":
            return _answer(
                caller,
                ResponseCode.SYSTEM_BUSY,
                "too many requests to read or change limits are pending; try again later",
            )
        self.open += 1
        return b""

    def reply(self, ask: CommandRequest, reply: LimitCommandReply) -> bytes:
        self.open -= 1
        caller = ask.handle
        if not isinstance(caller, _Asker):
            return b""
        if reply.error:
            return _answer(caller, ResponseCode.SYSTEM_ERROR, reply.error)
        if ask.verb != "view_limits":
            return _answer(caller, ResponseCode.SUCCESS)
        return _answer(caller, ResponseCode.SUCCESS, body=_view(reply))


def _read_update(raw: bytes, header_type: int, caller: _Asker) -> CommandRequest:
    if len(raw) > MAX_DECODED_HEADER_BYTES:
        raise _BadFieldError(f"the header is {len(raw)} bytes long; the maximum is {MAX_DECODED_HEADER_BYTES}")
    try:
        fields = decode_header(raw, header_type).fields
    except RemoteProtocolError as error:
        raise _BadFieldError(f"the header cannot be read: {error.detail}") from None
    for field, leave in _DEFAULTS.items():
        if fields.get(field, "") not in leave:
            raise _BadFieldError(f"this request cannot change {field}; omit it, or use Sluice's API or configuration")
    topic, qps = fields.get("topic", ""), fields.get("topicLimitQps", "")
    kind, name = KIND_TOPIC, topic
    if topic.startswith(RETRY_PREFIX):
        kind, name = KIND_RETRY_GROUP, topic.removeprefix(RETRY_PREFIX)
    if not _NAME.fullmatch(name) or len(topic) > MAX_NAME_CHARS:
        raise _BadFieldError(_found("topic", topic, _NAMES_ALLOWED))
    rate = float(qps) if _NUMBER.fullmatch(qps) else math.nan
    if not 0 <= rate <= MAX_RATE_PER_S:
        raise _BadFieldError(_found("topicLimitQps", qps, _RATES_ALLOWED))
    return CommandRequest("update_limit", kind, name, abs(rate), caller)


def _found(field: str, value: str, allowed: str) -> str:
    shown = repr(value[:64]) + ("…" if len(value) > 64 else "")
    return f"invalid {field} {shown if value else '(missing)'}: must be {allowed}"


def _view(reply: LimitCommandReply) -> bytes:
    shown = [
        _Limit(
            RETRY_PREFIX + each.name if each.kind == KIND_RETRY_GROUP else each.name,
            UNLIMITED_QPS if each.rate_per_s is None else each.rate_per_s,
            each.last_wait_us,
            each.last_refused_ms,
        )
        for each in reply.limits
        if each.kind in _SHOWN
    ]
    return _encode_limits(_Limits(_DataVersion(reply.version), shown))


def _answer(caller: _Asker, code: ResponseCode, remark: str | None = None, body: bytes = b"") -> bytes:
    if caller.oneway:
        return b""
    answer = RemotingCommand(
        code=code.value, opaque=caller.opaque, flag=FLAG_RESPONSE, version=VERSION, remark=remark, body=body
    )
    try:
        return encode(answer)
    except LocalProtocolError as error:
        return _answer(
            caller, ResponseCode.SYSTEM_ERROR, f"the limits do not fit into one frame; use the API ({error.detail})"
        )
