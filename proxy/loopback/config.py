"""What can be set about the embedded broker; no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: RocketMQ's own delay levels 1 to 18: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h.
DELAY_LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackConfig:
    """Everything configurable; the defaults suit the demo.

    Attributes:
        host: IP address that both listeners bind.
        broker_port: TCP port of the broker; 0 takes a free one.
        name_server_port: TCP port of the name server; 0 takes a free one.
        advertise: ``address:port`` that routes name, usually the sidecar's; empty means the broker's own.
        cluster: name of the cluster in routes.
        broker_name: name of the broker in routes.
        topics: topics that exist from the start, with their number of queues.
        auto_create_topics: a send to a topic that does not exist creates it.
        default_queues: queues of the template topic, and the most that an auto-created topic gets.
        delay_levels_s: delay of level 1, 2, … in seconds.
        max_reconsume_times: redeliveries before a message goes to ``%DLQ%<group>``, if the client names none.
        max_queue_messages: messages that one queue keeps; the oldest go first.
        max_queue_bytes: bytes that one queue keeps.
        max_store_bytes: bytes that all queues keep together.
        max_delayed_bytes: bytes of messages that wait for a delay level; beyond it they are refused.
        max_prepared: messages of transactions that have not ended; the oldest are forgotten.
        max_topics: topics beyond this are refused.
        max_groups: consumer groups beyond this are refused.
        max_held_pulls: long polls of one connection; beyond it they are answered at once.
        max_pull_bytes: bytes of one pull's answer, unless its first message alone is larger.
        lock_expiry_s: a queue lock that is not renewed ends after this.
        answer_delay_ms: every answer waits this long; a slow broker for tests.
    """

    host: str = "127.0.0.1"
    broker_port: int = 10911
    name_server_port: int = 9876
    advertise: str = ""
    cluster: str = "DefaultCluster"
    broker_name: str = "loopback"
    topics: Mapping[str, int] = field(default_factory=dict)
    auto_create_topics: bool = True
    default_queues: int = 8
    delay_levels_s: tuple[float, ...] = DELAY_LEVELS_S
    max_reconsume_times: int = 16
    max_queue_messages: int = 10_000
    max_queue_bytes: int = 4 << 20
    max_store_bytes: int = 32 << 20
    max_delayed_bytes: int = 16 << 20
    max_prepared: int = 1_000
    max_topics: int = 10_000
    max_groups: int = 10_000
    max_held_pulls: int = 1_000
    max_pull_bytes: int = 256 << 10
    lock_expiry_s: float = 60.0
    answer_delay_ms: int = 0
