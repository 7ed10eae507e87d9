"""Declares the fields of a limit.

Configuration keys, API bodies, the flags of ``sluice limits set``, the form on the admin page and the reference are
generated from ``FIELDS``. Every command imports this module, so importing it must be fast.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from limiter.rules.resource import LISTENER, SCOPES
from limiter.rules.rule import (
    MAX_CONFIRM_BELOW_BYTES,
    MAX_CONFIRM_QUEUES,
    MAX_FAIR_KEYS,
    MAX_WEIGHT,
    Action,
    Confirm,
    Count,
    FairBy,
    Fallback,
    Rule,
)

UNLIMITED: Literal["unlimited"] = "unlimited"

_PER_SECOND: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)/s")


def _read_rate(value: object) -> float | Literal["unlimited"]:
    if value == UNLIMITED:
        return UNLIMITED
    if isinstance(value, str) and (found := _PER_SECOND.fullmatch(value)):
        value = float(found[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        why = 'must be a non-negative number, such as 500 or "500/s" (messages per second), or "unlimited"'
        raise ValueError(why)
    return float(value) + 0.0


_Rate = Annotated[float | Literal["unlimited"], Meta(extra={"read": _read_rate})]
_Number = _Seconds = Annotated[float, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0)]
_Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_DELAY: Final = ("action", "delay")
_AFTER_CONSUME: Final = ("confirm", "after_consume")
_ADAPTIVE: Final = ("adaptive", True)
#: Kinds that only AMQP has. The form shows all fields for kinds that a plug-in defines.
_OF_AMQP: Final = ("queue", "exchange", "routing_key", "delivery", "user", "vhost")
_OF_ROCKETMQ: Final = ("topic", "retry_group", "transaction", "subscription", "producer_group")
_UNCONFIRMED: Final = (*_OF_ROCKETMQ, "routing_key", "delivery", "user", "vhost", "client", "certificate", "listener")
_NOT_ADAPTIVE: Final = tuple(dict.fromkeys((*_OF_AMQP, *_OF_ROCKETMQ, "client", "certificate")))


@dataclass(frozen=True, slots=True)
class LimitField:
    """One field of a limit.

    Attributes:
        default: None if there is no default, or if it depends on the kind.
        meaning: Description with the unit. The first sentence is also the flag's help text.
        meant: Maps common mistakes to the values to suggest.
        beside: The field has an effect only if at least one of these fields is set.
        only_with: The field has an effect only if this other field has this value.
        not_with: The field has no effect if this boolean field is true.
        flag: The flag of ``sluice limits set``, if it differs from the key.
        named: Whether ``[[limits]]`` has the field, but ``[defaults]`` does not.
        place, label: Position and label in the admin page's form. Without a label, there is no ordinary input.
        words: Maps values, including the empty one, to labels in the form.
        telling: Whether the form shows all fields of a limit that sets this one.
        not_of: Kinds for which the form hides the field.
        words_not_of: Maps values to the kinds for which the form hides them.
        only_of: Kinds for which the form shows the field, or empty for all kinds.
    """

    key: str
    type: Any
    default: Any
    meaning: str
    _: KW_ONLY
    meant: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    only_with: tuple[str, str | bool] | None = None
    not_with: str = ""
    flag: str = ""
    named: bool = False
    metavar: str = ""
    place: int = 0
    label: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    telling: bool = False
    not_of: tuple[str, ...] = ()
    words_not_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_of: tuple[str, ...] = ()

    @property
    def plain_type(self) -> Any:
        return get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type

    @property
    def values(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_choice(self) -> bool:
        """Whether setting the field to false differs from omitting it."""
        return self.plain_type is bool and self.default is None

    @property
    def is_list(self) -> bool:
        return get_origin(self.plain_type) is list

    def matters(self, limit: Mapping[str, Any]) -> bool:
        return not self.idle(limit)

    def idle(self, limit: Mapping[str, Any]) -> str:
        """Return why the field has no effect, such as ``without action = "delay"``, or "" if it has an effect."""
        if self.not_with and limit.get(self.not_with):
            return f"with {self.not_with} = true"
        if self.only_with is not None and not self.fits(limit):
            other, value = self.only_with
            return f"without {other} = {json.dumps(value)}"
        if self.beside and all(limit.get(key) is None for key in self.beside):
            return f"without {' or '.join(self.beside)}"
        return ""

    def fits(self, limit: Mapping[str, Any]) -> bool:
        if self.not_with and limit.get(self.not_with):
            return False
        return self.only_with is None or limit.get(self.only_with[0]) == self.only_with[1]


def _default(key: str) -> Any:
    return Rule.__dataclass_fields__[key].default


# fmt: off
FIELDS: Final = (
    LimitField("rate", _Rate, None,
               'messages per second, such as 500 or "500/s". 0 refuses everything, "unlimited" admits everything.'
               " Optional if bytes_per_s is given"),
    LimitField("burst_s", _Positive, _default("burst_s"),
               "size of the burst that is allowed after a pause, in seconds of traffic at the full rate",
               not_with="adaptive", metavar="S", place=2, label="Burst, seconds"),
    LimitField("bytes_per_s", _Number, None,
               "bytes per second. Requests count in full, not just their bodies. Applies in addition to the limit on"
               " messages. Default: no limit",
               not_with="adaptive", metavar="N", place=7, label="Bytes per second", telling=True),
    LimitField("bytes_burst_s", _Positive, _default("bytes_burst_s"),
               "size of the burst of bytes that is allowed after a pause, in seconds of traffic at bytes_per_s",
               beside=("bytes_per_s",), not_with="adaptive", metavar="S", place=8, label="Burst of bytes, seconds"),
    LimitField("count", Count, _default("count"),
               "unit of the rate: messages, or requests regardless of how many messages they contain",
               meant={"bytes": "bytes_per_s"}, not_with="adaptive", metavar="WHAT", place=9, label="The rate counts",
               words={"messages": "messages", "requests": "requests, regardless of how many messages they contain"}),
    LimitField("action", Action, None,
               "what happens above the limit: reject, delay, shadow (only count), or off (disable the limit). Default:"
               " depends on the protocol",
               meant={"refuse": "reject", "deny": "reject", "drop": "reject", "hold": "delay", "wait": "delay",
                      "log": "shadow", "count": "shadow", "none": "off"},
               metavar="ACTION", place=1, label="Above the limit",
               words={"": "default for the kind", "reject": "reject", "delay": "delay, then reject",
                      "shadow": "shadow", "off": "off: disabled"}),
    LimitField("max_debt_s", _Seconds, _default("max_debt_s"),
               "largest debt that a request may cause, in seconds of traffic at the full rate. A request that would"
               " exceed it is refused without affecting other requests",
               not_with="adaptive", metavar="S", place=4, label="Largest debt, seconds"),
    LimitField("max_delay_s", _Seconds, None,
               "with delay: how long a request may be held, in seconds. Default: depends on the kind and on spool",
               only_with=_DELAY, metavar="S", place=5, label="Longest delay, seconds"),
    LimitField("spool", bool, None,
               "with delay: true spools all requests above the limit, in order, and false spools none. Spooled requests"
               " wait for up to 3600 s, unless max_delay_s is given or clients of the kind time out earlier. Default:"
               " spool only requests that exceed the bounds on held requests",
               only_with=_DELAY, place=6, label="Spool",
               words={"": "only requests that do not fit in memory", "true": "all requests above the limit",
                      "false": "no requests"}),
    LimitField("adaptive", bool, _default("adaptive"),
               "true: the limit adapts to the listener's broker and is shared fairly. Used instead of rate. Only for"
               " kind listener, with action reject (the default) or shadow",
               label="Adaptive: the limit adapts to the broker", telling=True,
               only_of=(LISTENER,)),
    LimitField("floor", _Positive, _default("floor_per_s"),
               "with adaptive: minimum limit, in messages per second",
               only_with=_ADAPTIVE, metavar="N", label="Floor, per second",
               only_of=(LISTENER,)),
    LimitField("ceiling", _Positive, None,
               "with adaptive: maximum limit, in messages per second. Default: unlimited",
               only_with=_ADAPTIVE, metavar="N", label="Ceiling, per second",
               only_of=(LISTENER,)),
    LimitField("weight", Annotated[int, Meta(ge=1, le=MAX_WEIGHT)], _default("weight"),
               "number of shares of the listener's adaptive limit that each matching name gets. A rate is not required",
               metavar="N", place=17, label="Shares of an adaptive limit", telling=True, not_of=SCOPES),
    LimitField("busy_code", int, None, "response code for refused requests. Default: depends on the protocol",
               metavar="N", place=13, label="Refusal code", not_of=_OF_AMQP),
    LimitField("fair_by", FairBy, None,
               "share the limit fairly: one share for each client, producer_group, certificate or user. With adaptive,"
               " topic, queue and exchange are also allowed. Default with adaptive: one share per destination",
               meant={"address": "client", "ip": "client", "group": "producer_group"},
               metavar="WHAT", place=10, label="Fair shares",
               words={"": "none", "producer_group": "by producer group", "client": "by client address",
                      "certificate": "by TLS certificate", "user": "by user", "topic": "by topic",
                      "queue": "by queue", "exchange": "by exchange"},
               words_not_of={"producer_group": _OF_AMQP, "user": _OF_ROCKETMQ,
                             **dict.fromkeys(("topic", "queue", "exchange"), _NOT_ADAPTIVE)}, telling=True),
    LimitField("max_fair_keys", Annotated[int, Meta(ge=1, le=MAX_FAIR_KEYS)], _default("max_fair_keys"),
               "with fair_by: maximum number of shares at a time. All further callers together get one share",
               beside=("fair_by",), not_with="adaptive", metavar="N", place=11, label="Maximum fair shares"),
    LimitField("fleet", bool, _default("fleet"),
                "true: share the limit among all members of the fleet, instead of giving each member the full limit."
                " Requires [fleet] in the configuration",
               not_with="adaptive", flag="--fleet-limit", place=25,
               label="Fleet: one limit for all members together", telling=True),
    LimitField("warm_up_s", _Seconds, _default("warm_up_s"),
               "seconds to reach the full rate after an idle period",
               not_with="adaptive", metavar="S", place=12, label="Warm-up, seconds"),
    LimitField("break_s", _Seconds, None,
               "seconds for which all requests are refused once the limit is exceeded. 0: refuse only requests above"
               " the limit. Default: 1, or 0 for shared limits and scopes, and with delay or warm_up_s",
               not_with="adaptive", metavar="S", place=3, label="Break, seconds"),
    LimitField("confirm", Confirm, _default("confirm"),
               "what confirms small AMQP 0.9.1 messages to their sender: the broker's confirm (broker), or the"
               " consumers' acks (after_consume). A rate is not required",
               meant={"consumer": "after_consume", "consumers": "after_consume", "ack": "after_consume",
                      "disk": "broker"},
               metavar="WHAT", place=18, label="Confirmed by",
               words={"broker": "the broker", "after_consume": "the consumers, by their acks"}, telling=True,
               not_of=_UNCONFIRMED),
    LimitField("confirm_below_bytes", Annotated[int, Meta(ge=1, le=MAX_CONFIRM_BELOW_BYTES)],
               _default("confirm_below_bytes"),
               "with after_consume: messages of at least this many bytes are confirmed by the broker",
               only_with=_AFTER_CONSUME, metavar="BYTES", place=19, label="Only messages smaller than, bytes",
               not_of=_UNCONFIRMED),
    LimitField("confirm_within_s", _Positive, _default("confirm_within_s"),
               "with after_consume: how long consumers may take to acknowledge a message, in seconds",
               only_with=_AFTER_CONSUME, metavar="S", place=20, label="Time for consumers, seconds",
               not_of=_UNCONFIRMED),
    LimitField("confirm_queues", Annotated[int, Meta(ge=1, le=MAX_CONFIRM_QUEUES)], None,
               "with after_consume, for an exchange: number of queues that each message is routed to. If it is not"
               " given, the broker confirms messages to the exchange. If it is wrong, confirms are sent too early"
               " or never",
               only_with=_AFTER_CONSUME, metavar="N", place=21, label="Queues per message", not_of=_UNCONFIRMED),
    LimitField("fallback", Fallback, _default("fallback"),
               "with after_consume: what happens to messages that consumers do not acknowledge in time. persist"
               " publishes them again for the broker to confirm, nack refuses them",
               only_with=_AFTER_CONSUME, metavar="WHAT", place=22, label="Unconfirmed messages",
               words={"persist": "are published again for the broker to confirm", "nack": "are refused"},
               not_of=_UNCONFIRMED),
    LimitField("allow_under_limit", bool, _default("allow_under_limit"),
               "true: allow break_s to exceed burst_s. Clients then get less than the rate",
               not_with="adaptive", place=23,
               label="Allow a break longer than the burst: clients get less than the rate"),
    LimitField("exempt", bool, _default("exempt"),
               "true: never limit the name, not even by shared limits and scopes. Used instead of rate", named=True,
               place=24, label="Exempt: never limited, whatever the rate", telling=True),
    LimitField("between", str, None,
               "hours during which the limit applies, HH:MM-HH:MM. A period that crosses midnight belongs to the day on"
               " which it starts",
               named=True, metavar="HH:MM-HH:MM", place=14, label="Hours", telling=True),
    LimitField("days", Annotated[list[_Day], Meta(min_length=1)], None,
               "days on which the limit applies, such as mon,tue. Default: every day",
               named=True, metavar="DAYS", place=15, label="Days", telling=True),
    LimitField("time_zone", str, "UTC", "time zone of between and days", beside=("between", "days"), named=True,
               metavar="ZONE", place=16, label="Time zone"),
)
# fmt: on


def limit_struct(
    name: str, doc: str, *, more: Iterable[tuple[Any, ...]] = (), named: bool = True, patch: bool = False
) -> type[msgspec.Struct]:
    """Make a struct with a limit's fields and ``more`` fields, in the format of ``msgspec.defstruct``.

    ``named`` is false for ``[defaults]``. If ``patch`` is true, every field may be missing or None.
    """
    fields = [_struct_field(each, patch=patch) for each in FIELDS if named or not each.named]
    return msgspec.defstruct(name, [*fields, *more], namespace={"__doc__": doc}, frozen=True, kw_only=True)


#: mypy cannot follow types that are made at run time.
_annotated: Final[Any] = Annotated


def _struct_field(of: LimitField, *, patch: bool) -> tuple[str, Any, Any]:
    type_ = of.type | None if patch or of.default is None else of.type
    if patch:
        type_ |= UnsetType
    extra = {key: each for meta in getattr(of.type, "__metadata__", ()) for key, each in (meta.extra or {}).items()}
    about = Meta(description=of.meaning, extra={**extra, "meant": of.meant})
    return of.key, _annotated[type_, about], UNSET if patch else of.default


Limit: Final = limit_struct("Limit", "A limit, with the same keys as in the configuration file.")
DefaultLimit: Final = limit_struct("DefaultLimit", "The limit for each name that no other limit matches.", named=False)
