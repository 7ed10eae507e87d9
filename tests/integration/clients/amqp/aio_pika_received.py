"""Consumes so many messages of a queue with aio-pika and acknowledges each.

Arguments: host, port, queue, count. Prints ``started`` when it consumes, and at its end one line of JSON: of each
message, in their order, what the client says of its properties, and its body in hex.
"""

import asyncio
import json
import sys

import aio_pika


async def main(host: str, port: str, name: str, count: str) -> None:
    """Consume and print the report."""
    connection = await aio_pika.connect(host=host, port=int(port))
    channel = await connection.channel()
    queue = await channel.get_queue(name)
    seen: list[list[str]] = []
    over = asyncio.Event()

    async def received(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        properties = {key: value for key, value in message.info().items() if key in _PROPERTIES}
        seen.append([repr(sorted(properties.items())), message.body.hex()])
        await message.ack()
        if len(seen) == int(count):
            over.set()

    await queue.consume(received)
    print("started", flush=True)
    await over.wait()
    await connection.close()
    print(json.dumps(seen), flush=True)


_PROPERTIES = frozenset(
    {
        *("headers", "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to"),
        *("expiration", "message_id", "timestamp", "type", "user_id", "app_id"),
    }
)

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
