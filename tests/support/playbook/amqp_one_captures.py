"""Recorded connections of real AMQP 1.0 clients and brokers, in the order in which a relay read them."""

from dataclasses import dataclass
from pathlib import Path

from proxy.deciding.batch import Side

_FOLDER = Path(__file__).parents[2] / "captures" / "amqp10"


@dataclass(frozen=True)
class OneCapture:
    name: str
    steps: tuple[tuple[Side, bytes], ...]

    def sent(self, side: Side) -> bytes:
        return b"".join(data for whose, data in self.steps if whose is side)

    def __str__(self) -> str:
        return self.name


def _load(order: Path) -> OneCapture:
    streams = {
        mark: memoryview(order.with_name(f"{order.stem}-{to}.bin").read_bytes())
        for mark, to in ((">", "to-broker"), ("<", "to-client"))
    }
    sides = {">": Side.CLIENT, "<": Side.BROKER}
    steps = []
    for line in order.read_text(encoding="ascii").splitlines():
        mark, size = line.split()
        steps.append((sides[mark], bytes(streams[mark][: int(size)])))
        streams[mark] = streams[mark][int(size) :]
    assert not any(streams.values()), order
    return OneCapture(order.stem, tuple(steps))


def _load_all() -> tuple[OneCapture, ...]:
    found = sorted(_FOLDER.glob("*.order"))
    if not found:
        raise FileNotFoundError(f"no captures in {_FOLDER}: check out the whole repository")
    return tuple(_load(order) for order in found)


AMQP_ONE_CAPTURES = _load_all()
