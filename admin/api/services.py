"""What the endpoints stand on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from admin.board import Board
from admin.live.interface import LiveLimits
from admin.live.model import Author
from admin.wire import RejectionLog
from proxy.control import DataPath


def _none() -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Services:
    """What the endpoints ask.

    Attributes:
        data_path: the one interface to it.
        live: the limits in force, and the way to change them.
        board: what they do; it must be running.
        warnings: what is right in the configuration and probably not meant.
        instance: name of this sidecar among others.
        rejection_log: where the rejection log is written, and what is wrong with that.
    """

    data_path: DataPath
    live: LiveLimits
    board: Board
    warnings: Callable[[], Sequence[str]] = _none
    instance: str = ""
    rejection_log: Callable[[], RejectionLog] = RejectionLog


def author_of(request: Request) -> Author:
    """Return whose request it is, as the guard found."""
    author: Author = request.state.author
    return author
