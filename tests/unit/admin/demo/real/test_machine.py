"""What the demos with real brokers need of the machine."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.demo.rabbitmq.broker import RabbitMQ
from admin.demo.real import machine
from admin.demo.rocketmq.broker import RocketMQ


@pytest.fixture
def taken() -> Iterator[int]:
    """The broker's VIP channel, where something listens, this test's or another's."""
    with socket.socket() as sock:
        with suppress(OSError):
            sock.bind(("127.0.0.2", 10909))
            sock.listen()
        yield 10909


def test_a_port_that_is_taken_is_replaced(taken: int) -> None:
    ports, notes = machine.choose_ports(RocketMQ.ports)
    _, broker, _ = ports
    assert broker - 2 != taken
    assert f"port 10911 or one beside it is taken, so the broker has {broker}" in notes
    assert len(set(ports)) == 3


def test_without_a_port_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_free", lambda host, port: False)
    with pytest.raises(StartError, match="no port of this machine is free"):
        machine.choose_ports(RabbitMQ.ports)


def test_scratch_is_gone_afterwards_and_so_is_what_a_killed_demo_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    # No process has this number: it is above the greatest.
    left, others = tmp_path / "sluice-demo-rocketmq-9999999-a", tmp_path / "sluice-demo-rocketmq-notes"
    left.mkdir()
    others.mkdir()
    with machine.scratch("demo-rocketmq") as folder, machine.scratch("demo-rocketmq") as second:
        assert set(tmp_path.iterdir()) == {folder, second, others}
    assert list(tmp_path.iterdir()) == [others]
