"""Defines the columns of every table on the admin page and the command line.

The page receives them as ``COLUMNS`` in ``parts.js``.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

Order = Literal["asc", "desc"]
Format = Literal[
    "name",
    "text",
    "list",
    "state",
    "client",
    "links",
    "history",
    "flag",
    "rate",
    "count",
    "share",
    "bytes",
    "seconds",
    "milliseconds",
    "age",
    "time",
]


class Column(msgspec.Struct, frozen=True):
    """One column of a table.

    Attributes:
        name: Name of the column. If the column is sortable, the API's ``sort`` parameter accepts this name.
        title: Heading on the page. The command line shows it in lower case.
        field: Dotted path to the value within a row. If the value is a mapping, the cell shows the sum of its values.
        format: How to show the value. ``name`` shows the row's kind and name. ``client`` and ``links`` combine fields
            of a connection. ``history`` draws a small chart. ``age`` shows the time since a timestamp.
        order: Sort order after the first click. None if the column is not sortable.
        help: Tooltip for the heading.
        optional: Whether to hide the column if all its values are empty or 0.
    """

    name: str
    title: str
    field: str
    format: Format = "text"
    unit: str = ""
    order: Order | None = None
    help: str = ""
    optional: bool = False
    page: bool = True
    cli: bool = True


_BURST: Final = "Usage can exceed the limit for a while because stored permits allow bursts."


def _rate(name: str, title: str, field: str, what: str, *, optional: bool = False) -> Column:
    what = f"Messages per second that {what}, averaged over the last 10 s."
    return Column(name, title, field, "rate", "msg/s", "desc", what, optional)


def _live(name: str, title: str, field: str, format_: Format, what: str) -> Column:
    return Column(name, title, f"live.{field}", format_, help=what, optional=True, page=False)


LIMITS: Final = (
    Column("kind", "Kind", "kind", order="asc", page=False),
    Column("name", "Resource", "name", "name", order="asc"),
    Column("limit", "Limit", "limit_text", order="desc"),
    Column(
        "action", "Action", "limit.action", help="What happens to messages above the limit.", optional=True, page=False
    ),
    _rate("passed", "Passed/s", "live.passed_per_s", "passed"),
    _rate("refused", "Refused/s", "live.refused_per_s", "were refused"),
    _rate("shadowed", "Would refuse/s", "live.shadowed_per_s", "a shadow rule would have refused", optional=True),
    _rate(
        "bypassed", "Bypassed/s", "live.messages_per_s.bypassed", "passed because a handler was skipped", optional=True
    ),
    Column(
        "used", "Used", "live.used_ratio", "share", order="desc", help=f"Share of the limit that was used. {_BURST}"
    ),
    Column(
        *("wait", "Wait", "live.wait_s", "seconds"),
        order="desc",
        help="How long a new request would wait.",
        optional=True,
        page=False,
    ),
    _live("spooled", "Spooled", "spooled", "count", "Messages in the spool."),
    _live("state", "State", "state", "state", "Why messages are waiting."),
    _live("oldest_wait", "Oldest waits", "oldest_wait_s", "seconds", "How long the oldest message has been waiting."),
    Column(
        "history",
        "Last 5 min",
        "history",
        "history",
        help="Passed messages, with refused messages stacked on top. Each point is an average over 5 s.",
        cli=False,
    ),
    Column(
        "last_refused",
        "Last limited",
        "live.last_limited_at",
        "age",
        order="desc",
        help="When a request was last refused or held.",
    ),
    Column("rule", "Rule", "rule", order="asc"),
    _live(
        "refused_by",
        "Refused by",
        "refused_by",
        "text",
        "The rule that last refused a message, if that rule belongs to another resource.",
    ),
    Column("edited_by", "Edited by", "edit.by", optional=True, page=False),
    Column("edited", "Edited", "edit.at", "age", order="desc", optional=True, page=False, cli=False),
    Column("expires", "Until", "edit.expires_at", "time", order="asc", optional=True, page=False),
)

_PEER: Final = Column("peer", "Peer", "peer", order="asc")
_FRAMES: Final = Column("requests", "Frames/s", "requests_per_s", "rate", "frames/s", "desc", cli=False)
_REFUSED: Final = Column("refused", "Refused/s", "refused_per_s", "rate", "requests/s", "desc", cli=False)
_STATE: Final = Column(
    "state",
    "State",
    "stage.state",
    "state",
    order="desc",
    help="Whether the connection is running, or why it is waiting.",
)

CONNECTIONS: Final = (
    Column("id", "ID", "id", "count", order="asc", page=False),
    _PEER,
    Column("client", "Client", "client", "client", order="asc"),
    Column("listener", "Listener", "listener", order="asc", page=False),
    Column("resources", "Resources", "resources", "list"),
    _FRAMES,
    Column("requests_total", "Frames", "requests_total", "count", page=False),
    _REFUSED,
    Column("refused_total", "Refused", "refused_total", "count", page=False),
    Column("bytes", "Bytes/s", "bytes_per_s", "bytes", "bytes/s", "desc", cli=False),
    Column(
        "in_flight", "In flight", "in_flight", "count", order="desc", help="Requests that have not been answered yet."
    ),
    _STATE,
    Column("spooled", "Spooled", "spooled", "count", order="desc", help="Messages in the spool.", optional=True),
    Column("links", "Links", "links", "links", optional=True, page=False),
    Column("broker", "Broker", "broker", optional=True, page=False),
    Column("age", "Age", "age_s", "seconds", order="desc"),
)

LINKS: Final = (
    Column("name", "Link", "name"),
    Column("address", "Address", "address", page=False),
    Column("sends", "Client sends", "sends", "flag", page=False),
    Column("resource", "Resource", "resource"),
    Column("credit", "Credit", "credit", "count", help="Messages that the sender may send now."),
    Column(
        "withheld",
        "Withheld",
        "withheld",
        "count",
        help="Messages for which the receiver granted credit that Sluice withholds.",
    ),
    Column("used", "Used", "used", "count", help="Messages received and forwarded."),
    Column("refused", "Refused", "refused", "count"),
    Column("waits", "Waits", "waits_ms", "milliseconds", help="How long the link has been waiting for credit."),
)

SENDERS: Final = (
    Column("client", "Client", "client.id"),
    Column("user", "User", "client.user", optional=True),
    Column("product", "Product", "client.product", optional=True),
    _FRAMES,
    _REFUSED,
    _STATE,
    Column("age", "Connected for", "age_s", "seconds", order="desc"),
)
"""Columns for the connections that use a given resource."""

REFUSED_CLIENTS: Final = (
    Column("client", "Client", "client"),
    Column("user", "User", "user", optional=True),
    Column("product", "Product", "product", optional=True),
    Column("producer_group", "Producer group", "producer_group", optional=True),
    Column("refused", "Refused", "messages_refused", "count", "messages", optional=True),
    Column("share", "Share", "share", "share", help="This client's share of all refused messages.", optional=True),
    Column("shadowed", "Would be", "messages_shadowed", "count", "messages", optional=True),
    Column("held", "Held", "messages_held", "count", "messages", optional=True),
    Column("rules", "By", "rules", "list", optional=True),
    Column("last", "Last", "last_at", "age"),
)

STAGES: Final = (
    Column("name", "Stage", "name", "name"),
    Column("state", "State", "state", "state"),
    Column("text", "How often, how long", "text"),
    Column("waits_for", "Waits for", "waits_for", "list", optional=True),
)

CONFIRMS: Final = (
    Column("name", "Destination", "name", "name"),
    Column("by", "Confirmed by", "by"),
    Column("pending", "Waiting", "pending", "count"),
    Column("oldest", "Oldest", "oldest_ms", "milliseconds"),
    Column("window", "Window", "window", "count"),
    Column("after_consume", "By consumers", "after_consume_total", "count"),
    Column("broker", "By the broker", "broker_total", "count"),
    Column("persisted", "Published again", "persisted_total", "count"),
    Column("nacked", "Refused", "nacked_total", "count"),
)

FLEET_MEMBERS: Final = (
    Column("member", "Member", "member"),
    Column("seen", "Last contact", "seen_s_ago", "seconds", help="Time since the member last contacted Redis."),
    Column("this", "This one", "is_this", "flag", page=False),
)

FLEET_LIMITS: Final = (
    Column("name", "Limit", "name", "name"),
    Column("dimension", "Of", "dimension"),
    Column("rate", "Rate/s", "rate_per_s", "rate", help="The rate for all members together."),
    Column("share", "Share", "share", "share", help="This member's share of the fleet's demand."),
    Column("may", "Share/s", "may_per_s", "rate", help="This member's share of the rate."),
    Column("asks", "Asks/s", "asks_per_s", "rate", help="Demand from this member's clients."),
    Column(
        "permits", "Permits", "permits", "count", help="Permits fetched but not spent yet. A negative number is a debt."
    ),
)

SPOOLED: Final = (
    Column("name", "Resource", "name", "name"),
    Column("messages", "Messages", "messages", "count"),
    Column("content", "Content", "content_bytes", "bytes"),
    Column("memory", "In memory", "memory_bytes", "bytes"),
    Column("alpha", "Alpha", "messages.alpha", "count", help="Messages that are entirely in memory.", optional=True),
    Column("beta", "Beta", "messages.beta", "count", help="Content on disk, index in memory.", optional=True),
    Column(
        "gamma", "Gamma", "messages.gamma", "count", help="Content on disk, index in memory and on disk.", optional=True
    ),
    Column("delta", "Delta", "messages.delta", "count", help="Messages that are only on disk.", optional=True),
    Column("in", "In/s", "in_per_s", "rate", "msg/s"),
    Column("out", "Out/s", "out_per_s", "rate", "msg/s"),
    Column("queues", "Queues", "queues", "count"),
    Column(
        "recovered",
        "Recovered",
        "recovered",
        "count",
        help="Messages that were recovered after an earlier process stopped.",
        optional=True,
    ),
)

COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "limits": LIMITS,
    "connections": CONNECTIONS,
    "links": LINKS,
    "senders": SENDERS,
    "refused_clients": REFUSED_CLIENTS,
    "stages": STAGES,
    "confirms": CONFIRMS,
    "fleet-members": FLEET_MEMBERS,
    "fleet-limits": FLEET_LIMITS,
    "spooled": SPOOLED,
}


FILTERS: Final[Mapping[str, str]] = {
    "limited": "a request was refused or held in the last ten seconds",
    "edited": "there is an active edit",
    "near": "at least 80 % of the limit was used in the last ten seconds",
    "shadowed": "a shadow rule would have refused a request in the last ten seconds",
}
"""Filters for the table of limits, each with the condition that a row must meet."""


def sort_words(columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(column.name for column in columns if column.order is not None)


if TYPE_CHECKING:
    Filter = str
    LimitColumn = str
    ConnectionColumn = str
else:
    Filter = Literal[tuple(FILTERS)]
    LimitColumn = Literal[sort_words(LIMITS)]
    ConnectionColumn = Literal[sort_words(CONNECTIONS)]
