"""Publishes and consumes with aio-pika's robust connection for ever.

Arguments: host, port, queue. Says ``started``; then prints a line of JSON every half second: how many messages were
confirmed and how many came back so far, how often it connected, and which errors it saw.
"""

import asyncio
import json
import sys

import aio_pika

_STATE: dict = {"confirmed": 0, "consumed": 0, "connected": 0, "errors": {}}


async def main(host: str, port: str, queue_name: str) -> None:
    """Publish for ever; the library connects again by itself."""
    connection = await aio_pika.connect_robust(host=host, port=int(port), reconnect_interval=0.5)
    _STATE["connected"] += 1
    connection.reconnect_callbacks.add(lambda *_: _STATE.__setitem__("connected", _STATE["connected"] + 1))
    channel = await connection.channel(publisher_confirms=True)
    queue = await channel.declare_queue(queue_name, durable=True)

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        await message.ack()
        _STATE["consumed"] += 1

    await queue.consume(on_message)
    print("started", flush=True)

    async def publish() -> None:
        message = aio_pika.Message(b"x", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        while True:
            try:
                await channel.default_exchange.publish(message, routing_key=queue_name, timeout=2)
                _STATE["confirmed"] += 1
                await asyncio.sleep(0.05)
            except Exception as error:  # noqa: BLE001 - it shows whatever comes
                name = type(error).__name__
                _STATE["errors"][name] = _STATE["errors"].get(name, 0) + 1
                await asyncio.sleep(0.5)

    publishing = asyncio.create_task(publish())
    while not publishing.done():
        await asyncio.sleep(0.5)
        print(json.dumps(_STATE), flush=True)
    await publishing


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
