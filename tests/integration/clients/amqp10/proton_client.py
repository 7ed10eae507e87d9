"""Publishes and consumes with python-qpid-proton. See the README."""

import hashlib
import json
import sys
import time
import uuid
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container

_WAIT_FOR_ANSWERS_S = 30
_PACE_S = 0.01


def count_now(counts: list[int], since_s: float) -> None:
    second = int(time.monotonic() - since_s)
    counts.extend([0] * (second + 1 - len(counts)))
    counts[second] += 1


class Publishing:
    def __init__(self, ask: dict[str, Any]) -> None:
        self.ask = ask
        self.report = {"sent": 0, "accepted": [], "rejected": [], "released": [], "reasons": [], "error": ""}
        self.unanswered = {}
        self.over = False

    def open(self, container: Any, connection: Any) -> None:
        options = AtMostOnce() if self.ask.get("settled") else AtLeastOnce()
        # Its default link names are addresses.
        name = str(uuid.uuid4())
        self.link = container.create_sender(connection, self.ask["publish"] or None, name=name, options=options)

    def resume(self, since_s: float) -> None:
        report, ask = self.report, self.ask
        while (
            not self.over
            and self.link.credit > 0
            and len(self.unanswered) < ask.get("outstanding", 50)
            and report["sent"] < ask.get("count", 1 << 40)
            and report["sent"] <= (time.monotonic() - since_s) * ask.get("per_s", 1 << 40)
        ):
            number = report["sent"]
            message = Message(body=(b"%d " % number).ljust(ask.get("size", 100), b"."), inferred=True)
            if ask.get("to"):
                message.address = ask["to"][number % len(ask["to"])]
            delivery = self.link.send(message)
            report["sent"] += 1
            if ask.get("settled"):
                count_now(report["accepted"], since_s)
            else:
                self.unanswered[delivery.tag] = number

    @property
    def done(self) -> bool:
        sent = self.over or self.report["sent"] >= self.ask.get("count", 1 << 40)
        return bool(self.report["error"]) or (sent and not self.unanswered and not self.link.queued)


class Consuming:
    def __init__(self, ask: dict[str, Any]) -> None:
        self.ask = ask
        self.report = {"received": [], "numbers": [], "error": ""}
        self.over = self.drained = False
        self.digest = hashlib.sha256()

    def open(self, container: Any, connection: Any) -> None:
        self.link = container.create_receiver(connection, self.ask["consume"], name=str(uuid.uuid4()))

    def resume(self, since_s: float) -> None:
        del since_s
        if self.over:
            return
        if self.ask.get("drain"):
            if not self.drained:
                self.drained = True
                self.link.drain(self.ask["drain"])
            return
        credit = self.ask.get("credit", 10)
        if self.link.credit <= credit // 2:
            self.link.flow(credit - self.link.credit)

    @property
    def done(self) -> bool:
        if self.ask.get("drain"):
            return bool(self.report["error"]) or (self.drained and not self.link.credit)
        came = len(self.report["numbers"]) >= self.ask.get("count", 1 << 40)
        return self.over or came or bool(self.report["error"])


class Client(MessagingHandler):
    def __init__(self, host: str, port: str, ask: dict[str, Any]) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.address, self.ask = f"amqp://{host}:{port}", ask
        self.links = [Publishing(link) if "publish" in link else Consuming(link) for link in ask["links"]]
        self.error = ""
        self.timers: list[Any] = []

    def on_start(self, event: Any) -> None:
        how = {"max_frame_size": self.ask["frame_bytes"]} if self.ask.get("frame_bytes") else {}
        self.since_s = time.monotonic()
        self.connection = event.container.connect(
            self.address,
            user=self.ask.get("user", "guest"),
            password=self.ask.get("user", "guest"),
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            heartbeat=self.ask.get("idle_s") or None,
            reconnect=False,
            virtual_host=self.ask.get("hostname"),
            **how,
        )
        for link in self.links:
            link.open(event.container, self.connection)
            link.link.context = link
            if "seconds" in link.ask:
                self.schedule(event.container, link.ask["seconds"], link, "over")
            if "per_s" in link.ask:
                self.schedule(event.container, _PACE_S, link, "due")

    def schedule(self, container: Any, seconds: float, link: Any, what: str) -> None:
        """Run something on a link later, unless the client has ended."""
        if self.connection is not None:
            self.timers = self.timers[-100:]
            self.timers.append(container.schedule(seconds, Timer(self, link, what)))

    def resume(self, link: Any) -> None:
        link.resume(self.since_s)
        if all(each.done for each in self.links) and self.connection:
            for each in self.links:
                each.link.close()
            self.connection.close()
            self.connection = None
            for timer in self.timers:
                timer.cancel()

    def on_link_opened(self, event: Any) -> None:
        self.resume(event.link.context)

    def on_link_flow(self, event: Any) -> None:
        """Proton reports the end of a drain by the credit left."""
        self.resume(event.link.context)

    def on_sendable(self, event: Any) -> None:
        self.resume(event.sender.context)

    def _answered(self, event: Any, name: str) -> None:
        link = event.sender.context
        if (number := link.unanswered.pop(event.delivery.tag, None)) is not None:
            if name == "accepted":
                count_now(link.report["accepted"], self.since_s)
            else:
                link.report[name].append(number)
                condition = event.delivery.remote.condition
                reason = f"{condition.name}: {condition.description}" if condition else ""
                if reason not in link.report["reasons"] and len(link.report["reasons"]) < 5:
                    link.report["reasons"].append(reason)
        self.resume(link)

    def on_accepted(self, event: Any) -> None:
        self._answered(event, "accepted")

    def on_rejected(self, event: Any) -> None:
        self._answered(event, "rejected")

    def on_released(self, event: Any) -> None:
        self._answered(event, "released")

    def on_message(self, event: Any) -> None:
        link = event.receiver.context
        body = bytes(event.message.body)
        link.digest.update(body)
        link.report["numbers"].append(int(body.split(b" ", 1)[0]))
        link.report["sha256"] = link.digest.hexdigest()
        count_now(link.report["received"], self.since_s)
        self.accept(event.delivery)
        self.resume(link)

    def on_link_error(self, event: Any) -> None:
        condition = event.link.remote_condition
        event.link.context.report["error"] = f"{condition.name}: {condition.description}"
        event.link.close()
        self.resume(event.link.context)

    def on_connection_error(self, event: Any) -> None:
        condition = event.connection.remote_condition
        self.error = f"{condition.name}: {condition.description}"
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        self.error = self.error or str(event.transport.condition)


class Timer:
    """Ends a link at its time, and a client that waits for answers some time later."""

    def __init__(self, client: "Client", link: Any, what: str) -> None:
        self.client, self.link, self.what = client, link, what

    def on_timer_task(self, event: Any) -> None:
        if self.client.connection is None:
            return
        if self.what == "due":
            self.client.schedule(event.container, _PACE_S, self.link, "due")
            self.client.resume(self.link)
            return
        if self.what == "over":
            self.link.over = True
            self.client.schedule(event.container, _WAIT_FOR_ANSWERS_S, self.link, "lost")
        elif not self.link.done:
            self.link.report["error"] = "no answers"
        self.client.resume(self.link)


if __name__ == "__main__":
    client = Client(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    Container(client).run()
    for each in client.links:
        each.report["error"] = each.report["error"] or client.error
    print(json.dumps([each.report for each in client.links]), flush=True)
