"""Targets of coverage-guided fuzzing: each is a module with a function to try, and seeds."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from random import Random
from typing import Final, NamedTuple, Protocol

from playbook.steps import opcodes

Changed = Callable[[bytes, int], bytes]
"""Changes bytes as libFuzzer does, up to a length."""


class Mutate(Protocol):
    """Changes an input in the units of its format."""

    def __call__(self, data: bytes, max_bytes: int, changed: Changed, random: Random) -> bytes:
        """Return another input of at most ``max_bytes``."""


class Target(NamedTuple):
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutated: Mutate | None
    corpus: str
    steps: tuple[int, int]
    changed: int


# Tried code by name.
TARGETS: Final[Mapping[str, str]] = {
    "rocketmq": "a RocketMQ session, in any chunks, held against a model of frames and verdicts",
    "rocketmq_compiled": "a RocketMQ session that reads by the compiled extension, and one that reads by Python",
    "turn_compiled": "RocketMQ connections through a data path with the compiled turn, and through one without it",
    "name_server": "a session with RocketMQ's name server, and addresses in bodies",
    "rocketmq_grpc": "messages of RocketMQ 5, and a session that passes all, or refuses and holds",
    "amqp091": "an AMQP 0.9.1 session that passes all, or refuses and holds",
    "amqp091_compiled": "an AMQP 0.9.1 session that reads by the compiled extension, and one that reads by Python",
    "amqp10": "an AMQP 1.0 session that passes all, or refuses, holds and grants",
    "amqp10_compiled": "an AMQP 1.0 session that is lent to the compiled extension if possible, and one that never is",
    "amqp": "both versions on one port, and the session of that version alone",
    "proxy_protocol": "the PROXY header",
    "configuration": "the text of a configuration file, checked as `sluice check` does",
    "edits": "requests of the HTTP API that change limits",
    "log_lines": "lines of a rejection log",
}
# The same of the Rust core, whose targets are in native/fuzz.
NATIVE: Final[Mapping[str, str]] = {
    "native_rocketmq": "the core's scan of RocketMQ frames, and answers",
    "native_amqp091": "the core's scan of AMQP 0.9.1 publishes, and confirms",
    "native_amqp10": "the core's scan of AMQP 1.0 frames, flows and numbers",
}


def load(name: str) -> Target:
    module = import_module(f"fuzz_targets.{name}")
    return Target(
        module.run,
        module.seeds,
        getattr(module, "mutated", None),
        corpus=name.removesuffix("_compiled"),
        steps=getattr(module, "STEPS", (200_000, 4_000)),
        changed=getattr(module, "CHANGED", 300),
    )


def run_counted(target: Target, data: bytes) -> None:
    """Try an input, and check its steps against its length."""
    target.run(data)
    counted = opcodes(lambda: target.run(data))
    in_all, for_each_byte = target.steps
    assert counted <= in_all + for_each_byte * len(data), f"{counted} steps for {len(data)} bytes"
