"""The demos' small RocketMQ producers: no routes, no name server, one connection per topic."""

from collections.abc import Iterable
from typing import Final

from admin.demo.client import Client, Outcome
from admin.demo.frames import cut
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

_BODY: Final = b"sluice demo " * 8
_VERSION: Final = 513


class Producer(Client):
    """One topic's client."""

    def message(self, number: int) -> bytes:
        """Write a request to store a message."""
        return encode(
            RemotingCommand(
                code=RequestCode.SEND_MESSAGE_V2,
                language="PYTHON",
                version=_VERSION,
                opaque=number,
                flag=0,
                remark=None,
                fields={
                    "a": "sluice-demo",
                    "b": self._load.topic,
                    "c": "TBW102",
                    "d": "4",
                    "e": str(number % 4),
                    "f": "0",
                    "g": "0",
                    "h": "0",
                    "i": "",
                    "j": "0",
                    "k": "false",
                    "l": "16",
                    "m": "false",
                },
                body=_BODY,
            )
        )

    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        """Read frames."""
        return [(answer.opaque, _outcome(answer)) for answer in cut(data)]


def _outcome(answer: RemotingCommand) -> Outcome:
    if answer.code == ResponseCode.SUCCESS:
        return "passed"
    return "refused" if answer.code == ResponseCode.SYSTEM_BUSY and "RateLimit" in (answer.remark or "") else "failed"
