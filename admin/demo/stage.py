"""Runs a demo's clients and shows their figures until a signal arrives."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import nullcontext
from math import inf

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from admin.config.addresses import Endpoint
from admin.demo import view
from admin.demo.ledger import Ledger
from admin.demo.producer import Client
from admin.run.check import show

LAST_ANSWERS_S = 5.0


async def obey(
    signals: AsyncIterator[int],
    started: trio.Event,
    stopping: trio.Event,
    everything: trio.CancelScope,
    exit_code: list[int],
) -> None:
    """Stop sending on the first signal. Cancel everything on the second.

    If sending has not started yet, cancel everything on the first signal.
    """
    number = await anext(signals)
    if started.is_set():
        stopping.set()
        number = await anext(signals)
    exit_code[0] = 128 + number
    everything.cancel()


async def send(
    clients: Iterable[Client],
    ledger: Ledger,
    address: Endpoint,
    seconds: float | None,
    stopping: trio.Event,
    *,
    refresh_s: float = 0.25,
    look: Callable[[float, bool], Awaitable[None]] | None = None,
    last_answers_s: float = LAST_ANSWERS_S,
) -> tuple[float, list[str]]:
    """Run the clients and show their figures for ``seconds``, or until ``stopping`` is set.

    ``look`` is called before each update of the figures. Its arguments are the seconds since the start, and whether
    this is the last update.

    Returns:
        How long the clients were sending, in seconds, and a line for each lost connection.
    """
    console = Console(highlight=False)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    every_s = refresh_s if live else 1.0
    clients = list(clients)
    end_s = inf if seconds is None else seconds
    started_s = trio.current_time()
    elapsed_s, looks = 0.0, 0
    ledger.mark(started_s)
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.run, address)
        with live or nullcontext():
            while not stopping.is_set() and elapsed_s < end_s:
                looks += 1
                with trio.move_on_at(started_s + min(looks * every_s, end_s)):
                    await stopping.wait()
                elapsed_s = trio.current_time() - started_s
                if look is not None:
                    await look(elapsed_s, stopping.is_set() or elapsed_s >= end_s)
                ledger.mark(trio.current_time())
                if live:
                    live.update(view.live(ledger, elapsed_s, seconds), refresh=True)
                else:
                    show(Text(view.line(ledger, elapsed_s)))
        for client in clients:
            client.stop()
        elapsed_s = trio.current_time() - started_s
        nursery.cancel_scope.deadline = trio.current_time() + last_answers_s
    return elapsed_s, [f"{client.topic}: {client.lost}" for client in clients if client.lost]
