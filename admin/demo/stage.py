"""What all demos do: clients send at their rates while somebody watches, and signals end it.

What is in front of the clients, what is said of it and what the account holds against whom is the demos' own:
``embedded`` and ``real``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import nullcontext
from math import inf
from typing import Final

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from admin.config.addresses import Endpoint
from admin.demo import view
from admin.demo.client import Client
from admin.demo.ledger import Ledger
from admin.run.check import show

#: How long answers may take after the last message.
LAST_ANSWERS_S: Final = 5.0


async def obey(
    signals: AsyncIterator[int],
    started: trio.Event,
    stopping: trio.Event,
    everything: trio.CancelScope,
    exit_code: list[int],
) -> None:
    """End the sending at the first signal, and everything at the second one or if nothing is sent yet."""
    number = await anext(signals)
    if started.is_set():
        stopping.set()
        number = await anext(signals)
    exit_code[0] = 128 + number
    everything.cancel()


async def send(
    producers: Iterable[Client],
    ledger: Ledger,
    address: Endpoint,
    seconds: float | None,
    stopping: trio.Event,
    *,
    refresh_s: float,
    look: Callable[[float, bool], Awaitable[None]] | None = None,
    last_answers_s: float = LAST_ANSWERS_S,
) -> tuple[float, list[str]]:
    """Run the clients and show what becomes of it: a live table on a terminal, elsewhere a line a second.

    Args:
        producers: the clients.
        ledger: what they count in; it is marked each time it is shown.
        address: where they send to.
        seconds: for so long; None is until ``stopping``.
        stopping: ends it early.
        refresh_s: seconds from one look to the next, on a terminal.
        look: called each time before the ledger is marked, with the seconds since the start, and whether it is over.
        last_answers_s: how long answers may take after the last message.

    Returns:
        For how many seconds they sent, and which lost their connection, in words.
    """
    console = Console(highlight=False)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    every_s = refresh_s if live else 1.0
    producers = list(producers)
    started_s = trio.current_time()
    elapsed_s, looks = 0.0, 0
    ledger.mark(started_s)
    async with trio.open_nursery() as nursery:
        for producer in producers:
            nursery.start_soon(producer.run, address)
        with live or nullcontext():
            while not stopping.is_set() and (seconds is None or elapsed_s < seconds):
                looks += 1
                with trio.move_on_at(started_s + min(looks * every_s, inf if seconds is None else seconds)):
                    await stopping.wait()
                elapsed_s = trio.current_time() - started_s
                if look is not None:
                    await look(elapsed_s, stopping.is_set() or (seconds is not None and elapsed_s >= seconds))
                ledger.mark(trio.current_time())
                if live:
                    live.update(view.live(ledger, elapsed_s, seconds), refresh=True)
                else:
                    show(Text(view.line(ledger, elapsed_s)))
        for producer in producers:
            producer.stop()
        elapsed_s = trio.current_time() - started_s
        nursery.cancel_scope.deadline = trio.current_time() + last_answers_s
    return elapsed_s, [f"{producer.topic}: {producer.lost}" for producer in producers if producer.lost]
