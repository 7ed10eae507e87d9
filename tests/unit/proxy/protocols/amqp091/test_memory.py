from proxy.protocols.amqp091.after_consume import Hub
from proxy.protocols.amqp091.memory import Memory


def test_one_is_full_above_its_own_bound() -> None:
    memory = Memory(Hub(), 10, 100, lambda: None)
    memory.take(10)
    assert not memory.is_full()
    memory.take(1)
    assert memory.is_full()


def test_connection_below_its_equal_share_never_waits() -> None:
    hub = Hub()
    large, small = (Memory(hub, 100, 10, lambda: None) for _ in range(2))
    large.take(20)
    small.take(5)
    assert large.is_full()
    assert not small.is_full()
    small.take(1)
    assert small.is_full()


def test_waiting_connection_is_woken_once_when_others_use_less() -> None:
    hub = Hub()
    woken: list[str] = []
    large, small = (
        Memory(hub, 100, 10, lambda: woken.append("large")),
        Memory(hub, 100, 10, lambda: woken.append("small")),
    )
    large.take(6)
    small.take(6)
    assert small.is_full()
    large.give_back(1)
    assert not woken
    large.give_back(1)
    assert woken == ["small"]
    large.give_back(1)
    assert woken == ["small"]


def test_mandatory_reads_have_a_bound() -> None:
    memory = Memory(Hub(), 1 << 20, 1 << 30, lambda: None)
    memory.take(3 << 20)
    assert memory.is_full()
    assert not memory.is_overfull()
    memory.take(1)
    assert memory.is_overfull()
