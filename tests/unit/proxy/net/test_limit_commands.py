from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proxy.control import LimitCommandReply
from proxy.deciding.batch import ConnectionInfo
from proxy.net.limit_commands import MAX_OPEN, MAX_OPEN_OF_CLIENT, LimitCommands
from proxy.protocols.base import CommandRequest

VIEW = CommandRequest("view_limits")
DONE = LimitCommandReply(version=3)


class Client:
    def __init__(self, commands: LimitCommands, number: int = 1, address: str = "192.0.2.1") -> None:
        self.commands = commands
        self.info = ConnectionInfo(number, "main", "main", f"{address}:{number}", address)
        self.replies: list[tuple[CommandRequest, LimitCommandReply]] = []

    def ask(self, ask: CommandRequest = VIEW) -> str:
        return self.commands.ask(self.info, ask, lambda *reply: self.replies.append(reply))


@pytest.fixture
def commands() -> LimitCommands:
    return LimitCommands()


def test_without_a_handler_of_commands_the_session_is_told(commands: LimitCommands) -> None:
    client = Client(commands)
    assert client.ask() == "nobody"
    assert (client.replies, commands.open) == ([], 0)


async def test_each_answer_reaches_its_caller(commands: LimitCommands) -> None:
    one, other = Client(commands, 1), Client(commands, 2)
    change = CommandRequest("update_limit", "topic", "orders", 5.0)
    async with commands.take() as taken:
        assert (one.ask(change), other.ask()) == ("taken", "taken")
        first, second = [await anext(taken) for _ in range(2)]
        assert (first.verb, first.kind, first.name, first.rate_per_s) == ("update_limit", "topic", "orders", 5.0)
        assert (first.listener, first.peer, second.peer) == ("main", "192.0.2.1:1", "192.0.2.1:2")
        commands.reply(second.id, DONE)
        commands.reply(first.id, LimitCommandReply(error="no"))
        commands.reply(first.id, DONE)
    assert one.replies == [(change, LimitCommandReply(error="no"))]
    assert other.replies == [(VIEW, DONE)]


async def test_taker_waits_for_the_next(commands: LimitCommands, nursery: trio.Nursery) -> None:
    async def answer() -> None:
        async with commands.take() as taken:
            async for command in taken:
                commands.reply(command.id, DONE)

    nursery.start_soon(answer)
    client = Client(commands)
    for _ in range(3):
        await wait_all_tasks_blocked()
        assert client.ask() == "taken"
    await wait_all_tasks_blocked()
    assert client.replies == [(VIEW, DONE)] * 3


async def test_requests_beyond_the_maximum_are_refused_until_one_is_answered(commands: LimitCommands) -> None:
    clients = [Client(commands, number, f"192.0.2.{number}") for number in range(MAX_OPEN + 1)]
    async with commands.take() as taken:
        assert [client.ask() for client in clients] == ["taken"] * MAX_OPEN + ["full"]
        commands.reply((await anext(taken)).id, DONE)
        assert clients[-1].ask() == "taken"


async def test_client_that_fills_its_share_on_any_connections_leaves_room_for_others(commands: LimitCommands) -> None:
    one, two = Client(commands, 1, "2001:db8::1"), Client(commands, 2, "2001:db8::2")
    other = Client(commands, 3, "2001:db8:0:1::1")
    async with commands.take() as taken:
        assert [one.ask() for _ in range(MAX_OPEN_OF_CLIENT)] == ["taken"] * MAX_OPEN_OF_CLIENT
        assert (one.ask(), two.ask(), other.ask()) == ("full", "full", "taken")
        commands.reply((await anext(taken)).id, DONE)
        assert (two.ask(), two.ask()) == ("taken", "full")
        commands.forget(2)
        assert (one.ask(), one.ask()) == ("taken", "full")


async def test_a_clients_requests_are_forgotten_when_it_leaves(commands: LimitCommands) -> None:
    gone, stays = Client(commands, 1), Client(commands, 2)
    async with commands.take() as taken:
        gone.ask()
        command = await anext(taken)
        gone.ask()
        stays.ask()
        commands.forget(1)
        commands.reply(command.id, DONE)
        assert (await anext(taken)).peer == stays.info.peer
        assert commands.open == 1
    assert gone.replies == []


async def test_open_commands_are_answered_when_their_handler_leaves(commands: LimitCommands) -> None:
    client = Client(commands)
    async with commands.take() as taken:
        client.ask()
        client.ask()
        await anext(taken)
    assert [bool(reply.error) for _, reply in client.replies] == [True, True]
    assert client.ask() == "nobody"


async def test_there_is_one_taker(commands: LimitCommands) -> None:
    async with commands.take():
        with pytest.raises(RuntimeError, match="already have a receiver"):
            async with commands.take():
                raise AssertionError("there were two")
    async with commands.take():
        assert Client(commands).ask() == "taken"
