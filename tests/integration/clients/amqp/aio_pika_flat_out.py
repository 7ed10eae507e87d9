"""Publishes to several queues at once with aio-pika over one channel, with many unconfirmed publishes."""

import asyncio
import itertools
import json
import os
import sys
import time

import aio_pika
from aio_pika.exceptions import AMQPError, DeliveryError

_AT_ONCE = int(os.environ.get("AT_ONCE", "100"))


async def main(host: str, port: str, seconds: str, *queues: str) -> None:
    connection = await aio_pika.connect(host=host, port=int(port))
    channel = await connection.channel(publisher_confirms=True)
    for queue in queues:
        await channel.declare_queue(queue, durable=True)
    report: dict[str, dict[str, list]] = {queue: {"acked": [], "nacked": [], "failed": []} for queue in queues}
    mode = aio_pika.DeliveryMode(int(os.environ.get("DELIVERY_MODE", "1")))
    end = time.monotonic() + float(seconds)

    async def publish(queue: str, numbers: "itertools.count[int]") -> None:
        while time.monotonic() < end:
            number = next(numbers)
            try:
                message = aio_pika.Message(b"%d" % number, delivery_mode=mode)
                await channel.default_exchange.publish(message, routing_key=queue)
            except DeliveryError:
                report[queue]["nacked"].append(number)
            except AMQPError as error:
                report[queue]["failed"].append(repr(error))
            else:
                report[queue]["acked"].append(number)

    counts = {queue: itertools.count() for queue in queues}
    await asyncio.gather(*(publish(queue, counts[queue]) for queue in queues for _ in range(_AT_ONCE // len(queues))))
    await connection.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
