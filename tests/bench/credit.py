"""What credit between stages costs: nanoseconds of processor time, and bytes.

A send with its ack is what each batch of each connection pays at each stage it goes through.
"""

import tracemalloc
from collections.abc import Callable

from machine import Work, ns_per_piece
from report import aligned

from proxy.flow.credit import Stage
from proxy.flow.diagnosis import Survey

SECONDS = 0.5
TIMES = 7
COUNT = 10_000


def batches(size: int, followers: int = 1) -> Work:
    """Return a send and an ack of so many messages for each follower in turn."""
    sender = Stage("channel")
    stages = [Stage("resource") for _ in range(followers)]

    def call() -> None:
        for stage in stages:
            sender.send(stage, size, 1)
            stage.ack(sender, size, 1)

    return call, followers


def blocks() -> Work:
    """Return how a stage runs out of credit and is given some again."""
    sender, follower = Stage("channel"), Stage("resource")
    count = follower.gives.initial

    def call() -> None:
        sender.send(follower, count, 1)
        follower.ack(sender, count, 1)

    return call, 1


def stalls() -> Work:
    """Return how a stage is stalled and goes on."""
    connection, writer = Stage("connection"), Stage("writer")

    def call() -> None:
        connection.stall(writer, 1, on=True)
        connection.stall(writer, 1, on=False)

    return call, 1


def lives() -> Work:
    """Return how a channel comes, sends once, and goes."""
    connection, writer = Stage("connection"), Stage("writer")

    def call() -> None:
        channel = Stage("channel", "1")
        connection.send(channel, 1, 1)
        channel.send(writer, 1, 1)
        channel.close(1)

    return call, 1


def surveys() -> Work:
    """Return a survey of many connections with a channel each that wait for one resource."""
    resource = Stage("resource")
    connections = [Stage("connection", str(number)) for number in range(COUNT)]
    for connection in connections:
        channel = Stage("channel")
        connection.send(channel, channel.gives.initial, 1)
        channel.send(resource, resource.gives.initial, 1)

    def call() -> None:
        survey = Survey(1)
        for connection in connections:
            survey.add(connection)
        survey.findings()

    return call, COUNT


def bytes_each(make: Callable[[], object]) -> float:
    """Return what one of many takes."""
    tracemalloc.start()
    kept: list[object] = [None] * COUNT
    before = tracemalloc.get_traced_memory()[0]
    for number in range(COUNT):
        kept[number] = make()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / COUNT


def used(sent: int, acked: int) -> Callable[[], Stage]:
    """Return what makes a channel that has sent to one follower, which has acked."""
    writer = Stage("writer")

    def make() -> Stage:
        channel = Stage("channel", "1")
        channel.send(writer, sent, 10**15)
        if acked:
            writer.ack(channel, acked, 2 * 10**15)
        return channel

    return make


def main() -> None:
    """Measure and print."""
    works = {
        "send and ack of 1": batches(1),
        "send and ack of 64": batches(64),
        "send and ack of 200, a grant each": batches(200),
        "send and ack of 64, 100 followers in turn": batches(64, 100),
        "out of credit and back": blocks(),
        "stalled and back": stalls(),
        "a channel comes, sends, goes": lives(),
        "a survey, for each connection": surveys(),
    }
    rows = [[name, f"{min(ns_per_piece(work, SECONDS) for _ in range(TIMES)):.0f}"] for name, work in works.items()]
    print(aligned([["", "ns"], *rows]))
    stages = {
        "a stage of its own": lambda: Stage("channel", "1"),
        "with a follower that has many": used(130, 130),
        "out of credit": used(600, 0),
        "lately out of credit": used(600, 600),
    }
    rows = [[name, f"{bytes_each(make):.0f}"] for name, make in stages.items()]
    print(aligned([["", "bytes"], *rows]))


if __name__ == "__main__":
    main()
