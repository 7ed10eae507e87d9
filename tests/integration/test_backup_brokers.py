"""Two real brokers behind one listener: clients use the second while the first is unreachable."""

import time

import pytest
from harness.amqp import AmqpClient, AmqpError
from harness.ports import free_port
from harness.rabbitmq import StartRabbitMQ
from harness.sidecar import Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.long]

_TIMEOUT_S, _POLL_S = 60.0, 0.1


def _wait_for_broker(sluice: Sluice, address: str) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while f'"broker":"{address}"' not in sluice.get("/api/v1/state")[1]:
        assert time.monotonic() < deadline_s, sluice.get("/api/v1/state")[1]
        time.sleep(_POLL_S)


def test_clients_go_to_the_backup_and_back(start_rabbitmq: StartRabbitMQ, start_sluice: StartSluice) -> None:
    first, second = start_rabbitmq(), start_rabbitmq()
    listen = f"127.0.0.1:{free_port()}"
    config = f"""
    [[listeners]]
    protocol = "amqp091"
    listen = "{listen}"
    broker = "{first.address}"
    backup_brokers = ["{second.address}"]
    """
    with start_sluice(config=config) as sluice:
        with AmqpClient(listen) as before:
            assert (len(first.connections()), len(second.connections())) == (1, 0)
            first.stop()
            before.wait_for_end()
        _wait_for_broker(sluice, second.address)
        assert sluice.get("/readyz")[0] == 200
        with AmqpClient(listen) as meanwhile:
            channel = meanwhile.open_channel()
            assert len(second.connections()) == 1
            first.start()
            _wait_for_broker(sluice, first.address)
            with AmqpClient(listen):
                assert (len(first.connections()), len(second.connections())) == (1, 1)
            # Connections to the backup stay there.
            meanwhile.call(channel, "queue.declare", queue="stays", exclusive=True)
        first.kill()
        second.kill()
        with pytest.raises((OSError, AmqpError)):
            AmqpClient(listen)
        assert sluice.get("/readyz")[0] == 503
