"""Publishes and consumes with rabbitmq-amqp-python-client. See the README."""

import hashlib
import json
import sys
import time
from typing import Any

from rabbitmq_amqp_python_client import AMQPMessagingHandler, Environment, Message
from rabbitmq_amqp_python_client.qpid.proton import Delivery

_WAIT_FOR_ANSWERS_S = 30


def count_now(counts: list[int], since_s: float) -> None:
    second = int(time.monotonic() - since_s)
    counts.extend([0] * (second + 1 - len(counts)))
    counts[second] += 1


class Publishing:
    def __init__(self, ask: dict[str, Any], connection: Any, since_s: float) -> None:
        self.ask, self.since_s = ask, since_s
        self.report = {"sent": 0, "accepted": [], "rejected": [], "released": [], "reasons": [], "error": ""}
        self.unanswered = {}
        self.link = connection.publisher(ask["publish"])._sender.link

    def resume(self) -> None:
        report, ask = self.report, self.ask
        for delivery in [delivery for delivery in self.unanswered if delivery.settled or delivery.remote_state]:
            self._answered(delivery, self.unanswered.pop(delivery))
        due = (time.monotonic() - self.since_s) * ask.get("per_s", 1 << 40)
        while (
            not self.sent_all
            and report["sent"] <= due
            and self.link.credit > 0
            and len(self.unanswered) < ask.get("outstanding", 50)
        ):
            number = report["sent"]
            message = Message(body=(b"%d " % number).ljust(ask.get("size", 100), b"."), inferred=True)
            if ask.get("to"):
                message.address = ask["to"][number % len(ask["to"])]
            self.unanswered[self.link.send(message)] = number
            report["sent"] += 1

    @property
    def sent_all(self) -> bool:
        if time.monotonic() - self.since_s > self.ask.get("seconds", 1 << 20):
            return True
        return self.report["sent"] >= self.ask.get("count", 1 << 40)

    @property
    def done(self) -> bool:
        if time.monotonic() - self.since_s > self.ask.get("seconds", 1 << 20) + _WAIT_FOR_ANSWERS_S:
            self.report["error"] = "no answers"
            return True
        return self.sent_all and not self.unanswered

    def _answered(self, delivery: Any, number: int) -> None:
        if delivery.remote_state == Delivery.ACCEPTED:
            count_now(self.report["accepted"], self.since_s)
        else:
            self.report["rejected" if delivery.remote_state == Delivery.REJECTED else "released"].append(number)
            condition = delivery.remote.condition
            reason = f"{condition.name}: {condition.description}" if condition else ""
            if reason not in self.report["reasons"] and len(self.report["reasons"]) < 5:
                self.report["reasons"].append(reason)
        delivery.settle()


class Consuming(AMQPMessagingHandler):
    """The client gives credit itself."""

    def __init__(self, ask: dict[str, Any], connection: Any, since_s: float) -> None:
        super().__init__()
        self.ask, self.since_s = ask, since_s
        self.report = {"received": [], "numbers": [], "error": ""}
        self.digest = hashlib.sha256()
        connection.consumer(ask["consume"], message_handler=self, credit=ask.get("credit", 10))

    def on_amqp_message(self, event: Any) -> None:
        body = bytes(event.message.body)
        self.digest.update(body)
        self.report["numbers"].append(int(body.split(b" ", 1)[0]))
        self.report["sha256"] = self.digest.hexdigest()
        count_now(self.report["received"], self.since_s)
        self.delivery_context.accept(event)

    def resume(self) -> None:
        pass

    @property
    def done(self) -> bool:
        if time.monotonic() - self.since_s > self.ask.get("seconds", 1 << 20):
            return True
        return len(self.report["numbers"]) >= self.ask.get("count", 1 << 40)


def main(host: str, port: str, ask: dict[str, Any]) -> None:
    environment = Environment(uri=f"amqp://guest:guest@{host}:{port}/")
    connection = environment.connection()
    connection.dial()
    since_s = time.monotonic()
    links = [(Publishing if "publish" in link else Consuming)(link, connection, since_s) for link in ask["links"]]
    blocking = connection._conn
    try:
        while True:
            for link in links:
                link.resume()
            if all(link.done for link in links):
                break
            blocking.container.timeout = 0.01
            blocking.container.process()
            if blocking.disconnected:
                raise ConnectionError(blocking.disconnected)  # noqa: TRY301
        environment.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test wants to know
        for link in links:
            link.report["error"] = repr(error)
    print(json.dumps([link.report for link in links]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
