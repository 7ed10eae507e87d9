"""Prints aio-pika's reports to its user, until the connection is gone."""

import asyncio
import json
import sys

import aio_pika


def say(about: str, what: str, text: object) -> None:
    print(json.dumps({"about": about, "what": what, "text": str(text)}), flush=True)


async def main(host: str, port: str, queue: str, refusing: str) -> None:
    connection = await aio_pika.connect(host=host, port=int(port))
    channel = await connection.channel(publisher_confirms=True)

    async def publish(key: str, *, mandatory: bool = False) -> None:
        await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key=key, mandatory=mandatory)

    for about, key, mandatory in (("refused", refusing, False), ("unroutable", "nowhere", True)):
        try:
            await publish(key, mandatory=mandatory)
            say(about, "ack", "")
        except Exception as error:  # noqa: BLE001 - it shows whatever comes
            say(about, type(error).__name__, error)
    print("started", flush=True)
    try:
        while True:
            await publish(queue)
            await asyncio.sleep(0.05)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it shows whatever comes
        say("lost", type(error).__name__, error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
