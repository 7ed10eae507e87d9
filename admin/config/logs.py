"""Writes structured logs to stderr, as readable text on a terminal and as JSON lines otherwise."""

import atexit
import logging
import queue
import sys
import threading
import time
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from admin.common.tables import printable
from admin.config.settings import LogSettings

_QUEUED_LINES: Final = 10_000


class LogWriter:
    """A text stream that writes on a separate thread, so that a full or closed pipe cannot block the sidecar.

    ``write`` never blocks or raises. Lines that cannot be queued or written are counted in ``dropped_lines``.
    """

    def __init__(self, stream: TextIO) -> None:
        self.dropped_lines = 0
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(_QUEUED_LINES)
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped_lines += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing. Every line is flushed when it is written."""

    def drain(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._lines.all_tasks_done.wait(left_s)

    def _run(self) -> None:
        while True:
            text = self._lines.get()
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                # A ValueError means that this process has closed the stream.
                self.dropped_lines += 1
            finally:
                self._lines.task_done()


_LAST_LINES_S: Final = 1.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_writers: list[LogWriter] = []


def start(settings: LogSettings) -> None:
    writer = LogWriter(sys.stderr)
    _writers.append(writer)
    atexit.register(writer.drain, _LAST_LINES_S)
    configure(settings, writer)


def change_level(settings: LogSettings) -> None:
    configure(settings, _writers[-1] if _writers else None)


def dropped_lines() -> int:
    return sum(writer.dropped_lines for writer in _writers)


def configure(settings: LogSettings, stream: TextIO | LogWriter | None = None) -> None:
    stream = stream or sys.stderr
    text = cast("TextIO", stream)
    human = settings.format == "human" or (settings.format == "auto" and stream.isatty())
    level = _LEVELS[settings.level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
    ]
    renderer: list[Processor]
    if human:
        shared.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False))
        renderer = [_printable, structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=30)]
    else:
        shared.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        renderer = [structlog.processors.format_exc_info, _lead, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=text),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(shared, renderer, text, max(level, logging.WARNING))


def _printable(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _lead(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    leading = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return {**leading, **event}


def _configure_libraries(shared: list[Processor], renderer: list[Processor], stream: TextIO, level: int) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
