"""How much work a piece of code does, counted and not timed, so that a count is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def opcodes(work: Callable[[], object]) -> int:
    """Return how many instructions of the interpreter some work takes; a call of C code is one."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        del argument
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
