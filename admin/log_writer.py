"""Writes log lines on a thread of its own, so that whoever reads the log can neither stop nor end the sidecar.

A full pipe blocks its writer, a closed one and a full disk raise; messages must not wait for either. Lines that
cannot be queued or written are dropped and counted.
"""

import queue
import threading
import time
from typing import Final, TextIO

#: Lines that may wait for a slow reader.
_QUEUED_LINES: Final = 10_000


class LogWriter:
    """A text stream, as far as loggers need one, whose ``write`` neither blocks nor raises.

    Args:
        stream: where the lines go.

    Attributes:
        dropped_lines: lines that were lost so far.
    """

    def __init__(self, stream: TextIO) -> None:
        self.dropped_lines = 0
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(_QUEUED_LINES)
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def isatty(self) -> bool:
        """Return whether people read the stream as it comes."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Queue some text."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped_lines += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing: every line is flushed once it is written."""

    def drain(self, timeout_s: float) -> None:
        """Wait until everything queued is written, but no longer than ``timeout_s``; for the end of the process."""
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
                # ValueError is Python's word for a stream that was closed on our side.
                self.dropped_lines += 1
            finally:
                self._lines.task_done()
