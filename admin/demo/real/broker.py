"""What a demo needs of its broker: how it is started, filled and asked, and what is said of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from admin.config.addresses import Endpoint
from admin.demo.client import Client
from admin.demo.real.child import Child

BROKER_HOST: Final = "127.0.0.1"
#: Where clients are sent, and Sluice listens. All of 127/8 is this machine.
ADVERTISED_HOST: Final = "127.0.0.2"


class RealBroker(ABC):
    """A broker of the demo's own, which starts when it is made; ``wait`` says when it can be used.

    Args:
        jars: folder of what is fetched for it.
        folder: an empty one, for configuration, store and logs.
        ports: one for each of the class's ``ports``.
        behind_sluice: clients are sent to Sluice.

    Attributes:
        name: as people call it.
        program: as the demo is called.
        kind: what messages are sent to, as limits call it.
        ports: what wants a port, the usual one, and where that and its neighbours must be free: host and distance.
        client: a client of it, which sends at a steady rate.
        last_answers_s: how long answers may take after the last message.
        processes: all of it, in the order of their start.
        address: the broker's own.
    """

    name: ClassVar[str]
    program: ClassVar[str]
    kind: ClassVar[str]
    ports: ClassVar[Mapping[str, tuple[int, Sequence[tuple[str, int]]]]]
    client: ClassVar[type[Client]]
    last_answers_s: ClassVar[float] = 5.0
    processes: tuple[Child, ...]
    address: Endpoint

    @abstractmethod
    def __init__(self, jars: Path, folder: Path, ports: Sequence[int], *, behind_sluice: bool) -> None: ...

    @staticmethod
    @abstractmethod
    def missing(jars: Path) -> Sequence[str]:
        """Say what of it is not on this machine, and how to get it; a line for each thing."""

    @abstractmethod
    async def wait(self, names: Sequence[str]) -> Endpoint:
        """Wait until it takes messages for these names; returns where clients are sent.

        Raises:
            StartError: it did not in time.
        """

    @abstractmethod
    def listeners(self) -> str:
        """Return the listeners of a Sluice in front of it, as its configuration has them."""

    @abstractmethod
    def about(self) -> Sequence[tuple[str, str]]:
        """Return what is said of flood and clients at the beginning, by a word each."""

    @abstractmethod
    async def stored(self, name: str) -> int:
        """Ask the broker itself, past any proxy, how many messages of a name it holds."""

    @abstractmethod
    def flood(self, name: str) -> Child:
        """Start its own load generator, which sends as fast as the answers come until it is killed."""

    @staticmethod
    def failed_of(output: str) -> int:
        """Return how many messages the load generator could not send, by what it has printed."""
        del output
        return 0
