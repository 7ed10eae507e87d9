import io
import threading

import pytest

from admin.config import logs
from admin.config.logs import LogWriter


class Gated(io.StringIO):
    """A stream that stops reading until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.reached = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.gate.wait(30)
        return super().write(text)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stalled_reader_delays_no_other_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_QUEUED_LINES", 10)
    stream = Gated()
    writer = LogWriter(stream)
    writer.write("first\n")
    assert stream.reached.wait(30)
    for _ in range(15):
        writer.write("line\n")
    assert writer.dropped_lines == 5
    stream.gate.set()
    writer.drain(30)
    assert len(stream.getvalue().splitlines()) == 11


def test_a_reader_that_is_gone_is_counted_and_raises_nothing() -> None:
    writer = LogWriter(Broken())
    writer.write("a\n")
    writer.write("b\n")
    writer.drain(30)
    assert writer.dropped_lines == 2


def test_draining_gives_up_on_a_reader_that_never_reads() -> None:
    stream = Gated()
    writer = LogWriter(stream)
    writer.write("a\n")
    writer.drain(0)
    assert stream.getvalue() == ""
    stream.gate.set()
    writer.drain(30)
