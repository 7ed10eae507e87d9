"""Spool statistics for operators."""

from typing import Annotated, Literal, get_args

import msgspec

from proxy.common.metric import Metric
from proxy.spool.queue import Queue, States

SpoolPlace = Literal["alpha", "beta", "gamma", "delta"]
ByPlace = dict[SpoolPlace, int]


def _nothing() -> ByPlace:
    return dict.fromkeys(get_args(SpoolPlace), 0)


class SpooledResource(msgspec.Struct):
    """A resource's spooled messages, across all connections.

    Attributes:
        queues: number of queues. Each sending channel or connection has one.
        messages: number of messages by place, including those recovered.
        content_bytes: size of the messages by place, in bytes.
        memory_bytes: memory that the queues use, in bytes.
        target_bytes: memory that the queues may keep while memory is short, in bytes.
        in_per_s: messages spooled per second over the last few seconds.
        out_per_s: messages taken out of the spool per second over the last few seconds.
        recovered: number of messages that an earlier process left.
    """

    kind: str
    name: str
    queues: int = 0
    messages: ByPlace = msgspec.field(default_factory=_nothing)
    content_bytes: ByPlace = msgspec.field(default_factory=_nothing)
    memory_bytes: int = 0
    target_bytes: int = 0
    in_per_s: float = 0
    out_per_s: float = 0
    recovered: int = 0

    def add(self, queue: Queue, states: States) -> None:
        self.queues += 1
        for place in self.messages:
            self.messages[place] += getattr(states, place)
            self.content_bytes[place] += getattr(states, f"{place}_bytes")
        self.memory_bytes += queue.memory_bytes
        self.target_bytes += queue.target_bytes
        self.in_per_s += queue.in_per_s
        self.out_per_s += queue.out_per_s
        self.recovered += queue.count if queue.is_recovered else 0


class SpoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the spool. Its totals add up: in + recovered = out + lost + dropped + messages still present.

    Attributes:
        writing_bytes: bytes submitted to the disk but not written yet.
        alarm: why writes or reads fail. Empty while the disk works.
        resources: the resources with the most messages.
    """

    queues: Annotated[int, Metric("sluice_spool_queues", "Queues in the spool.")] = 0
    messages: Annotated[
        ByPlace,
        Metric(
            "sluice_spool_messages",
            "Spooled messages by place: alpha (in memory only), beta (content on disk, index in memory), gamma "
            "(content on disk, index in memory and on disk), delta (on disk only).",
            ("place",),
        ),
    ] = {}
    content_bytes: Annotated[
        ByPlace,
        Metric("sluice_spool_content_bytes", "Size of the spooled messages by place, in bytes.", ("place",)),
    ] = {}
    memory_bytes: Annotated[int, Metric("sluice_spool_memory_bytes", "Memory that the spool uses.")] = 0
    memory_limit_bytes: Annotated[int, Metric("sluice_spool_memory_limit_bytes", "Memory that the spool may use.")] = 0
    disk_bytes: Annotated[int, Metric("sluice_spool_disk_bytes", "Size of the spool's files.")] = 0
    disk_limit_bytes: Annotated[int, Metric("sluice_spool_disk_limit_bytes", "Maximum size of the spool's files.")] = 0
    writing_bytes: int = 0
    stopped: Annotated[
        bool,
        Metric(
            "sluice_spool_stopped",
            "1 while Sluice has stopped reading messages for the spool because the spool's memory is full or its disk "
            "is slow.",
        ),
    ] = False
    stops_total: Annotated[
        int,
        Metric("sluice_spool_stops_total", "How often Sluice stopped reading messages for the spool."),
    ] = 0
    alarm: str = ""
    in_total: Annotated[int, Metric("sluice_spool_in_total", "Messages spooled.")] = 0
    out_total: Annotated[
        int, Metric("sluice_spool_out_total", "Messages taken out of the spool to be forwarded or refused.")
    ] = 0
    written_total: Annotated[int, Metric("sluice_spool_written_total", "Spooled messages written to disk.")] = 0
    read_total: Annotated[int, Metric("sluice_spool_read_total", "Spooled messages read from disk.")] = 0
    lost_total: Annotated[
        int, Metric("sluice_spool_lost_total", "Spooled messages that were damaged or missing on disk.")
    ] = 0
    dropped_total: Annotated[
        int,
        Metric(
            "sluice_spool_dropped_total",
            "Spooled messages dropped because they were purged, their connection closed, or an earlier process left "
            "them and no matching client connected.",
        ),
    ] = 0
    recovered_total: Annotated[
        int,
        Metric(
            "sluice_spool_recovered_total",
            "Messages that an earlier process left in the spool. They are not included in sluice_spool_in_total. With "
            "recover = false, they are dropped.",
        ),
    ] = 0
    expired_total: Annotated[
        int,
        Metric("sluice_spool_expired_total", "Spooled messages not forwarded because their time to live had expired."),
    ] = 0
    too_old_total: Annotated[
        int,
        Metric(
            "sluice_spool_too_old_total",
            "Spooled messages older than spool.max_age_s, which were refused or forwarded immediately.",
        ),
    ] = 0
    resources: tuple[SpooledResource, ...] = ()
    more_resources: int = 0
