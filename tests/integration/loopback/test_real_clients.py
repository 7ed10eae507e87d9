"""Unchanged clients work against the embedded broker."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.clients import cpp, java, node, run_client

pytestmark = pytest.mark.integration

_BINARY_HEADER = ("-Drocketmq.serialize.type=ROCKETMQ",)
_SECONDS = 2


@pytest.mark.parametrize(
    "client", ["java", pytest.param("java with the binary header", marks=pytest.mark.long), "cpp", "node"]
)
async def test_everything_confirmed_to_a_producer_is_stored(embedded: Any, client_home: Path, client: str) -> None:
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
        assert report[topic]["stored"] == embedded.loopback.broker.stored(topic) > 0
