"""What kinds of logs can be made."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Shape:
    """How traffic looks like."""

    instances: int = 3
    resources: int = 1000
    active: int = 150
    storms_per_minute: float = 1.0
    storm_s: float = 120.0
    clients: int = 8
    hot_clients: int = 0


SHAPES: Final = {
    "steady": Shape(active=300, storms_per_minute=0.1, storm_s=20.0, clients=3),
    "stormy": Shape(),
    "skewed": Shape(active=60, storms_per_minute=0.1, storm_s=40.0, hot_clients=24),
}
