"""Records this directory again, from running brokers.

Arguments: ``host:port`` of a RabbitMQ 4, and of an Artemis.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).parent
sys.path[:0] = [str(_HERE.parents[1] / folder) for folder in ("integration", "support")]

from harness.amqp import AmqpClient  # noqa: E402
from harness.amqp_one import AmqpOneClient, message  # noqa: E402
from harness.clients import amqp_one_client, run_client  # noqa: E402
from harness.recorder import Recorder, write_recording  # noqa: E402

_CLIENTS: Final = {"rabbitmq": ("proton", "rabbitmq", "rhea", "java"), "artemis": ("proton", "rhea")}
_PREFIXES: Final = {"rabbitmq": "/queues/", "artemis": ""}
_QUEUES: Final = ("recorded-a", "recorded-b")


def _record(name: str, client: str, address: str, *links: dict[str, Any], **how: Any) -> None:
    with Recorder(address) as recorder, tempfile.TemporaryDirectory() as home:
        host, _, port = recorder.address.rpartition(":")
        command = [*amqp_one_client(client), host, port, json.dumps({"links": links, **how})]
        print(name, run_client(command, home=Path(home), seconds=10))
    (chunks,) = recorder.connections
    write_recording(_HERE, name, chunks)


def _record_frames_of_512_bytes(name: str, address: str, queue: str) -> None:
    with Recorder(address) as recorder, AmqpOneClient(recorder.address, frame_bytes=512) as client:
        sender = client.attach_sender(queue)
        for body, aborted in (
            (b"0 ", False),
            (b"1 ".ljust(2000, b"."), False),
            (b"2 ".ljust(1500, b"."), True),
            (b"3 ", False),
        ):
            number = sender.send(message(body), frame_bytes=512, aborted=aborted)
            if not aborted:
                sender.outcome(number)
        receiver = client.attach_receiver(queue)
        receiver.flow(2, echo=True)
        for _ in range(2):
            receiver.receive()
        receiver.flow(5, drain=True)
        receiver.receive()
        receiver.drained()
        receiver.detach()
        sender.detach()
    write_recording(_HERE, name, recorder.connections[0])


def main(rabbitmq: str, artemis: str) -> None:
    with AmqpClient(rabbitmq) as client:
        channel = client.open_channel()
        for queue in _QUEUES:
            client.call(channel, "queue.declare", queue=queue, durable=True)
            client.call(channel, "queue.purge", queue=queue)
    for broker, address in (("rabbitmq", rabbitmq), ("artemis", artemis)):
        first, second = (_PREFIXES[broker] + queue for queue in _QUEUES)
        for client in _CLIENTS[broker]:
            _record(
                *(f"{client}-{broker}-two-links", client, address),
                {"publish": first, "count": 12, "size": 40},
                {"publish": second, "count": 12, "size": 300, "outstanding": 4},
                {"consume": first, "count": 12, "credit": 5},
                {"consume": second, "count": 12, "credit": 5},
            )
            _record(
                *(f"{client}-{broker}-anonymous", client, address),
                {"publish": "", "to": [first, second], "count": 6, "size": 40},
                {"consume": first, "count": 3},
                {"consume": second, "count": 3},
            )
        for client in ("proton", "rhea"):
            filling = {"publish": first, "count": 5, "size": 40, "settled": True}
            _record(f"{client}-{broker}-settled", client, address, filling)
            _record(f"{client}-{broker}-drain", client, address, {"consume": first, "drain": 10})
        _record_frames_of_512_bytes(f"raw-{broker}-512-byte-frames", address, first)
        large = {"publish": first, "count": 2, "size": 2000}, {"consume": first, "count": 2, "credit": 1}
        _record(f"proton-{broker}-512-byte-frames", "proton", address, *large, frame_bytes=512)


if __name__ == "__main__":
    main(*sys.argv[1:])
