"""How confirms by consumers are said to people."""

from collections.abc import Mapping
from typing import Final

from admin.common.numbers import number

REASONS: Final[Mapping[str, str]] = {
    "no_consumer": "no consumer of it is connected through Sluice",
    "auto_ack": "a consumer of it acknowledges nothing",
    "behind": "its consumers do not keep up",
    "falls_back": "messages fell back just now",
    "no_gain": "the broker confirms nearly as soon",
    "memory": "what waits takes all the memory that it may",
}
"""Why the broker confirms in place of the consumers, by the word that a ``ConfirmState`` has."""


def promise(*, below_bytes: int, within_s: float, queues: int, fallback: str) -> str:
    """Say in a sentence what a rule with ``after_consume`` promises to publishers.

    Args:
        below_bytes: smaller messages are confirmed by consumers, in bytes.
        within_s: how long they have, in seconds.
        queues: to how many queues each message goes.
        fallback: what becomes of a message that they do not confirm.
    """
    by = "its consumers have acknowledged it" if queues == 1 else f"consumers of {queues} queues have acknowledged it"
    unless = "published again for the broker to confirm" if fallback == "persist" else "refused"
    return (
        f"a message below {number(below_bytes)} bytes is confirmed once {by} or the broker has stored it, never before;"
        f" what consumers do not acknowledge within {number(within_s)} s is {unless}"
    )
