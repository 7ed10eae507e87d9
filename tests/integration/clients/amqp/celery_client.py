"""Celery's worker, and programs that give it tasks."""

import json
import os
import sys
import time
from typing import Any

from celery import Celery, Task, chord, group
from celery.signals import worker_ready
from kombu.exceptions import OperationalError

app = Celery("tests")
_TIMEOUT_S = 60


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3, default_retry_delay=0.1)
def fails_at_first(self: Task) -> int:
    """Fail three times, then return the number of retries."""
    if self.request.retries < 3:
        raise self.retry()
    return self.request.retries


@app.task
def is_due(at_s: float) -> bool:
    return time.time() >= at_s


@worker_ready.connect
def _say_so(**_: Any) -> None:
    print("started", flush=True)


def calls(results: str) -> dict[str, Any]:
    if not results.startswith("rpc:"):  # it has no chords
        return {"chord": chord(add.s(n, n) for n in range(10))(total.s()).get(timeout=_TIMEOUT_S)}
    sums = [add.delay(n, n) for n in range(60)]
    tried = [fails_at_first.delay() for _ in range(3)]
    due = [is_due.apply_async((time.time() + 1,), countdown=1) for _ in range(3)]
    return {
        "sums": [each.get(timeout=_TIMEOUT_S) for each in sums],
        "retries": [each.get(timeout=_TIMEOUT_S) for each in tried],
        "due": [each.get(timeout=_TIMEOUT_S) for each in due],
        "group": group(add.s(n, n) for n in range(10))().get(timeout=_TIMEOUT_S),
    }


def confirmed(count: str, retry: str) -> list[str]:
    """Send tasks with broker confirms. Return each error, empty if there was none."""
    app.conf.broker_transport_options = {"confirm_publish": True}
    told = []
    for number in range(int(count)):
        try:
            add.apply_async((number, number), retry=bool(retry))
        except OperationalError as error:
            told.append(f"{type(error).__name__}: {error}")
        else:
            told.append("")
    return told


def main(host: str, port: str, queue: str, results: str, what: str, *more: str) -> None:
    app.conf.update(
        broker_url=f"amqp://guest:guest@{host}:{port}//?heartbeat=4",
        broker_connection_retry_on_startup=True,
        task_default_queue=queue,
        result_backend=results,
        result_chord_retry_interval=0.2,
    )
    if what == "worker":
        app.worker_main(["worker", "--pool=threads", "--concurrency=4", "--loglevel=WARNING"])
    elif what == "exits":
        for number in range(int(more[0])):
            add.apply_async((number, number), ignore_result=True)
        print(json.dumps(int(more[0])), flush=True)
        os._exit(0)
    else:
        print(json.dumps(calls(results) if what == "calls" else confirmed(*more)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
