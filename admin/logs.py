"""Structured logs to stderr: for people on a terminal, one JSON object a line otherwise.

Nothing on the data path logs per message or per refusal; what is counted there is read from the metrics.
"""

import atexit
import logging
import sys
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from admin.log_writer import LogWriter
from admin.settings import LogSettings

#: How long the end of the process waits for its last lines to be read.
_LAST_LINES_S: Final = 1.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_writers: list[LogWriter] = []


def start(settings: LogSettings) -> None:
    """Log to stderr for as long as the process lives, through a writer that its reader cannot hold up."""
    writer = LogWriter(sys.stderr)
    _writers.append(writer)
    atexit.register(writer.drain, _LAST_LINES_S)
    configure(settings, writer)


def change_level(settings: LogSettings) -> None:
    """Go on with another level."""
    configure(settings, _writers[-1] if _writers else None)


def dropped_lines() -> int:
    """Return how many lines were lost because nobody read them or nothing took them."""
    return sum(writer.dropped_lines for writer in _writers)


def configure(settings: LogSettings, stream: TextIO | LogWriter | None = None) -> None:
    """Set up structlog, and send what libraries log through it too.

    Args:
        settings: level and format.
        stream: where to; stderr if not given.
    """
    stream = stream or sys.stderr
    # A LogWriter is as much of a text stream as loggers use.
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
        renderer = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=30)]
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


def _lead(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put what every line has in front."""
    leading = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return {**leading, **event}


def _configure_libraries(shared: list[Processor], renderer: list[Processor], stream: TextIO, level: int) -> None:
    """Let the standard library's loggers, hypercorn's among them, write the same lines, warnings and up."""
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
