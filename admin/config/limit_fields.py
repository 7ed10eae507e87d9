"""The fields of a limit, each defined once.

Keys, bodies of edits, flags of ``sluice limits set``, the page's form and the reference are generated from this table.
``limiter.rules.rule.Rule`` documents what a field does.

Imports neither pydantic nor a protocol, because every command loads it.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen

from limiter.rules.rule import (
    MAX_CONFIRM_BELOW_BYTES,
    MAX_CONFIRM_QUEUES,
    MAX_FAIR_KEYS,
    Action,
    Confirm,
    Count,
    FairBy,
    Fallback,
    Rule,
)

_Number = _Seconds = Annotated[float, Ge(0)]
_Burst = Annotated[float, Gt(0)]
_DELAY: Final = ("action", "delay")
_AFTER_CONSUME: Final = ("confirm", "after_consume")
#: Kinds of one protocol only; a plug-in's kinds have all fields.
_OF_AMQP: Final = ("queue", "exchange", "routing_key", "delivery", "user", "vhost")
_OF_ROCKETMQ: Final = ("topic", "retry_group", "transaction", "subscription", "producer_group")
_UNCONFIRMED: Final = (*_OF_ROCKETMQ, "routing_key", "delivery", "user", "vhost", "client", "certificate", "listener")
_Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


@dataclass(frozen=True, slots=True)
class LimitField:
    """One field of a limit.

    Attributes:
        key: the field's name; in seconds if it ends in ``_s``.
        type: type of its values, with their bounds.
        default: default value; None: no value, or the default of the kind.
        meaning: what it is, and in which unit.
        meant: for words that are not values, the value that was probably meant.
        beside: it has no effect unless one of these fields is given.
        only_with: another field and the value of that, without which it has no effect.
        named: only limits of a name or a pattern have it, not defaults.
        flag: help text of its flag; empty: there is no flag.
        metavar: placeholder for the flag's value; a boolean has none.
        place: its position in the page's form.
        label: its label in the form; empty if the form has no ordinary input for it.
        help: further text in the form.
        words: labels of its values in the form; the empty value is none.
        telling: the form unfolds all fields of a limit that has it.
        not_of: kinds whose form does not show it.
        words_not_of: kinds whose form does not show one of its values.
    """

    key: str
    type: Any
    default: Any
    meaning: str
    _: KW_ONLY
    meant: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    only_with: tuple[str, str] | None = None
    named: bool = False
    flag: str = ""
    metavar: str = ""
    place: int = 0
    label: str = ""
    help: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    telling: bool = False
    not_of: tuple[str, ...] = ()
    words_not_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def plain_type(self) -> Any:
        """The type without its bounds."""
        return get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type

    @property
    def values(self) -> tuple[str, ...]:
        """Its values, if they are words; otherwise empty."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_choice(self) -> bool:
        """Whether it is true, false or not given, which are three things."""
        return self.plain_type is bool and self.default is None

    @property
    def is_list(self) -> bool:
        """Whether its value is a list."""
        return get_origin(self.plain_type) is list

    def matters(self, limit: Mapping[str, Any]) -> bool:
        """Return whether it has an effect, given the other fields of a limit."""
        if not self.fits(limit):
            return False
        return not self.beside or any(limit.get(key) is not None for key in self.beside)

    def fits(self, limit: Mapping[str, Any]) -> bool:
        """Return whether the other fields of a limit have the one value that it goes with, if there is one."""
        return self.only_with is None or limit.get(self.only_with[0]) == self.only_with[1]

    def needs(self) -> str:
        """Return what must be set for it to have an effect."""
        return " or ".join(self.beside) if self.only_with is None else '{} = "{}"'.format(*self.only_with)


def _default(key: str) -> Any:
    return Rule.__dataclass_fields__[key].default


# fmt: off
FIELDS: Final = (
    LimitField("rate", float | Literal["unlimited"], None,
               'messages per second, 500 or "500/s"; 0 refuses everything, "unlimited" admits everything; may be left'
               " out if bytes_per_s is given"),
    LimitField("burst_s", _Burst, _default("burst_s"),
               "burst: seconds of the rate that may pass at once after a pause",
               flag="burst: seconds of the rate that may pass at once", metavar="S",
               place=2, label="Burst, seconds", help="Seconds of the rate that may pass at once after a pause."),
    LimitField("bytes_per_s", _Number, None, "bytes per second, of whole requests; default: no limit",
               flag="bytes per second, in addition to messages", metavar="N",
               place=7, label="Bytes per second", telling=True, help="In addition to messages. Empty: no limit."),
    LimitField("bytes_burst_s", _Burst, _default("bytes_burst_s"), "burst of the bytes, in seconds of bytes_per_s",
               beside=("bytes_per_s",),
               flag="burst of the bytes", metavar="S", place=8, label="Burst of bytes, seconds"),
    LimitField("count", Count, _default("count"),
               "unit of the rate: messages, or requests whatever their number of messages",
               flag="unit of the rate: messages or requests", metavar="WHAT", place=9, label="The rate counts",
               words={"messages": "messages", "requests": "requests, whatever their number of messages"}),
    LimitField("action", Action, None,
               "above the limit: reject, shadow or delay; off disables the limit; default: that of the protocol",
               meant={"refuse": "reject", "deny": "reject", "drop": "reject", "hold": "delay", "wait": "delay",
                      "log": "shadow", "count": "shadow", "none": "off"},
               flag="above the limit: reject, shadow, delay, off", metavar="ACTION",
               place=1, label="Above the limit", help="Shadow decides and counts, but lets everything pass.",
               words={"": "default of the kind", "reject": "reject", "delay": "delay, then reject",
                      "shadow": "shadow", "off": "off: disabled"}),
    LimitField("max_debt_s", _Seconds, _default("max_debt_s"),
               "largest debt of one request, in seconds of the rate; a request above it is refused alone",
               flag="largest debt of one request, in seconds of the rate", metavar="S",
               place=4, label="Longest debt, seconds",
               help="Largest debt of one request; a request above it is refused alone."),
    LimitField("max_delay_s", _Seconds, None,
               "with delay: longest time a request is held, in seconds; default: depends on the kind, and on spool",
               only_with=_DELAY, flag="with delay: longest time that a request is held", metavar="S",
               place=5, label="Longest delay, seconds",
               help="With delay. Empty: the default of the kind, or 3600 for spooled requests whose clients wait."),
    LimitField("spool", bool, None,
               "with delay: true puts everything above the limit aside in the spool, in order, for up to 3600 s if"
               " clients of the kind wait that long, unless max_delay_s is given; false puts nothing aside; default:"
               " only what the bounds on held requests have no room for",
               only_with=_DELAY, flag="with delay: put everything above the limit aside in the spool, or nothing",
               place=6, label="Put aside in the spool",
               words={"": "what memory has no room for", "true": "everything above the limit", "false": "nothing"},
               help="With delay, for what is sent: it waits in memory and on disk, in order."),
    LimitField("busy_code", int, None, "response code of a refusal; default: the protocol's own",
               flag="response code of a refusal", metavar="N",
               place=13, label="Refusal code", help="Empty: the protocol's own.", not_of=_OF_AMQP),
    LimitField("fair_by", FairBy, None, "fair shares of the limit: one for each client, group, certificate or user",
               meant={"address": "client", "ip": "client", "group": "producer_group"},
               flag="fair shares by client, producer_group, certificate or user", metavar="WHAT",
               place=10, label="Fair shares", help="Above the limit, each active one gets at least an equal share.",
               words={"": "none", "producer_group": "by producer group", "client": "by client address",
                      "certificate": "by TLS certificate", "user": "by user"},
               words_not_of={"producer_group": _OF_AMQP, "user": _OF_ROCKETMQ}, telling=True),
    LimitField("max_fair_keys", Annotated[int, Ge(1), Le(MAX_FAIR_KEYS)], _default("max_fair_keys"),
               "with fair_by: most shares at a time; everybody else has one share together", beside=("fair_by",),
               flag="most fair shares at a time", metavar="N",
               place=11, label="Most fair shares", help="Everybody else has one share together."),
    LimitField("warm_up_s", _Seconds, _default("warm_up_s"),
               "seconds until the full rate is reached after an idle time",
               flag="seconds until the full rate after an idle time", metavar="S",
               place=12, label="Warm-up, seconds", help="Time until the full rate after an idle time."),
    LimitField("break_s", _Seconds, None,
               "seconds for which everything is refused once the limit is hit; default: 1; 0 for shared limits,"
               " scopes, delay and warm_up_s",
               flag="seconds for which everything is refused once it is hit", metavar="S",
               place=3, label="Break, seconds",
               help="Refuse everything for this time once the limit is hit; 0 is a plain bucket. Empty: the default."),
    LimitField("confirm", Confirm, _default("confirm"),
               "what confirms a small message to its sender: the broker, or after_consume, the acks of its consumers;"
               " needs no rate",
               meant={"consumer": "after_consume", "consumers": "after_consume", "ack": "after_consume",
                      "disk": "broker"},
               flag="what confirms a publish: broker or after_consume", metavar="WHAT",
               place=18, label="Confirmed by", help="Of AMQP 0.9.1, for messages published with confirms.",
               words={"broker": "the broker", "after_consume": "the consumers, by their acks"}, telling=True,
               not_of=_UNCONFIRMED),
    LimitField("confirm_below_bytes", Annotated[int, Ge(1), Le(MAX_CONFIRM_BELOW_BYTES)],
               _default("confirm_below_bytes"),
               "with after_consume: size in bytes from which on the broker confirms a message",
               only_with=_AFTER_CONSUME, flag="with after_consume: only messages smaller than this", metavar="BYTES",
               place=19, label="Only messages below, bytes", help="With consumers that confirm.", not_of=_UNCONFIRMED),
    LimitField("confirm_within_s", Annotated[float, Gt(0)], _default("confirm_within_s"),
               "with after_consume: how long the consumers have, in seconds",
               only_with=_AFTER_CONSUME, flag="with after_consume: how long the consumers have", metavar="S",
               place=20, label="Consumers have, seconds", help="What they do not confirm by then falls back.",
               not_of=_UNCONFIRMED),
    LimitField("confirm_queues", Annotated[int, Ge(1), Le(MAX_CONFIRM_QUEUES)], None,
               "with after_consume, of an exchange: number of queues that each message goes to; without it, messages of"
               " an exchange are left alone; must be exact, or confirms come too early or never",
               only_with=_AFTER_CONSUME, flag="with after_consume, of an exchange: queues that each message goes to",
               metavar="N", place=21, label="Queues for each message",
               help="Of an exchange: exactly so many. Empty: its messages are left alone.", not_of=_UNCONFIRMED),
    LimitField("fallback", Fallback, _default("fallback"),
               "with after_consume, for what the consumers do not confirm: persist publishes it again, for the broker"
               " to confirm; nack refuses it",
               only_with=_AFTER_CONSUME, flag="with after_consume, for what consumers do not confirm: persist or nack",
               metavar="WHAT", place=22, label="What consumers do not confirm",
               words={"persist": "is published again, for the broker to confirm", "nack": "is refused"},
               not_of=_UNCONFIRMED),
    LimitField("allow_under_limit", bool, _default("allow_under_limit"),
               "accept a break longer than the burst, although clients then get less than the rate",
               flag="accept a break longer than the burst",
               place=23, label="Accept a break longer than the burst: clients get less than the rate"),
    LimitField("exempt", bool, _default("exempt"),
               "true: never limited, not even by shared limits and scopes; replaces the rate", named=True,
               flag="never limited; replaces the rate",
               place=24, label="Exempt: never limited; replaces the rate", telling=True),
    LimitField("between", str, None,
               "hours in which the limit applies, HH:MM-HH:MM; hours across midnight belong to the first day",
               named=True, flag="applies only in these hours", metavar="HH:MM-HH:MM",
               place=14, label="Hours", help="HH:MM-HH:MM. Empty: always.", telling=True),
    LimitField("days", Annotated[list[_Day], MinLen(1)], None,
               "days on which the limit applies; default: every day",
               named=True, flag="applies only on these days: mon,tue,…", metavar="DAYS",
               place=15, label="Days", help="mon, tue, … Empty: every day.", telling=True),
    LimitField("time_zone", str, "UTC", "time zone of between and days", beside=("between", "days"), named=True,
               flag="time zone of hours and days (UTC)", metavar="ZONE",
               place=16, label="Time zone", help="Of hours and days."),
)
"""All fields of a limit, in the order in which they are shown."""
# fmt: on
