"""Real, unchanged clients work against the embedded broker."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from harness.clients import cpp, java, node, run_client

pytestmark = pytest.mark.integration

_BINARY_HEADER = ("-Drocketmq.serialize.type=ROCKETMQ",)
_SECONDS = 2
_PATIENCE_S = 90


@pytest.mark.parametrize("client", ["java", "java with the binary header", "cpp", "node"])
async def test_everything_that_a_producer_was_told_is_stored_is_stored(
    embedded: Any, client_home: Path, client: str
) -> None:
    arguments = (embedded.namesrv, "producers", str(_SECONDS), "10", "orders", "invoices")
    # One of these clients does not send to a topic that does not exist.
    for topic in ("orders", "invoices"):
        embedded.loopback.broker.create_topic(topic)
    command: Sequence[str] = {
        "java": partial(java, home=client_home),
        "java with the binary header": partial(java, home=client_home, options=_BINARY_HEADER),
        "cpp": cpp,
        "node": node,
    }[client](
        {"cpp": "flat_out_producer.py", "node": "flat_out_producer.js"}.get(client, "FlatOutProducer.java"), *arguments
    )

    report = await embedded.run(run_client, command, home=client_home, seconds=_SECONDS)

    for topic in ("orders", "invoices"):
        assert report[topic]["failed"] == 0, report
        assert report[topic]["stored"] == embedded.loopback.stored(topic) > 0


@pytest.mark.parametrize("options", [(), _BINARY_HEADER], ids=["JSON header", "binary header"])
async def test_java_sends_and_consumes_in_every_way(
    embedded: Any, programs: Path, client_home: Path, options: Sequence[str]
) -> None:
    sends = java(str(programs / "EveryKindOfSend.java"), embedded.namesrv, "orders", home=client_home, options=options)

    stored = await embedded.run(run_client, sends, home=client_home, seconds=0)

    every_way = {
        "waiting": 1,
        "callback": 1,
        "batch": 5,
        "compressed": 1,
    }
    assert stored == every_way
    # The oneway send was not answered.
    with trio.fail_after(_PATIENCE_S):
        while embedded.loopback.stored("orders") < 9:  # noqa: ASYNC110 - no event for it
            await trio.sleep(0.05)

    consumes = java(
        str(programs / "EveryKindOfConsumer.java"),
        *(embedded.namesrv, "orders", "9", "1", str(_PATIENCE_S)),
        home=client_home,
        options=options,
    )
    seen = await embedded.run(run_client, consumes, home=client_home, seconds=6 * _PATIENCE_S)

    everything = {
        "waiting": 1,
        "callback": 1,
        "oneway": 1,
        "batch": 5,
        "compressedco": 1,
    }
    assert seen["concurrent"] == seen["broadcast"] == seen["lite pull"] == everything
    assert seen["tagged"] == {"callback": 1}
    assert seen["shared"] == {**everything, "queues of one": 2, "queues of two": 2}
