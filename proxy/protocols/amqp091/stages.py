"""The credit stages of one connection (see ``proxy.flow.credit``).

A channel and each of its lines have a stage while messages wait there. Messages that pass immediately are not counted.
"""

from collections.abc import Callable, Sequence

from proxy.flow.credit import Stage, credit_for
from proxy.protocols.amqp091.channel import Channel


class Stages:
    def __init__(
        self, connection: Stage, writer: Stage, watch_writes: Callable[[bool], None], wake: Callable[[], None]
    ) -> None:
        self.now_ns = 0
        self.unwritten_bytes = 0
        self._connection = connection
        self._writer = writer
        self._watch_writes = watch_writes
        self._wake = wake
        self._watches = False
        self._channels: dict[Channel, Stage] = {}
        self._resources: dict[Stage, Channel] = {}
        self._unwritten: dict[Stage, int] = {}

    def all(self) -> Sequence[Stage]:
        return [*self._channels.values(), *self._resources]

    def part(self) -> None:
        del self._watch_writes

    def begin(self, channel: Channel, name: str) -> Stage:
        gives, now_ns = self._connection.gives, self.now_ns
        own = self._channels.get(channel)
        if own is None:
            own = self._channels[channel] = Stage("channel", str(channel.number), gives)
        resource = Stage("resource", name, gives, self._wake)
        self._resources[resource] = channel
        for stage in (self._connection, own, resource):
            stage.throttle(now_ns, on=True)
        self._listen()
        return resource

    def waits(self, resource: Stage, size_bytes: int) -> None:
        count = credit_for(size_bytes)
        channel, connection, now_ns = self._channels[self._resources[resource]], self._connection, self.now_ns
        connection.send(channel, count, now_ns)
        channel.send(resource, count, now_ns)
        resource.ack(channel, count, now_ns)
        channel.ack(connection, count, now_ns)

    def end(self, resource: Stage) -> None:
        channel = self._resources.pop(resource)
        resource.close(self.now_ns)
        if not channel.to_broker.lines and not channel.to_client.lines:
            self._channels[channel].throttle(self.now_ns, on=False)
        if not self._resources:
            self._connection.throttle(self.now_ns, on=False)
        self._listen()

    def forget(self, channel: Channel) -> None:
        stage = self._channels.pop(channel, None)
        if stage is not None:
            stage.close(self.now_ns)

    def goes(self, resource: Stage, size_bytes: int) -> None:
        resource.send(self._writer, 1, self.now_ns)
        self._unwritten[resource] = self._unwritten.get(resource, 0) + 1
        self.unwritten_bytes += size_bytes

    def written(self) -> None:
        """Ack all forwarded messages, because the driver has written their bytes to the kernel's buffer."""
        unwritten, self._unwritten = self._unwritten, {}
        for resource, count in unwritten.items():
            self._writer.ack(resource, count, self.now_ns)
        self.unwritten_bytes = 0
        self._listen()

    def block(self, *, on: bool) -> None:
        self._writer.block(self.now_ns, on=on)

    def is_behind(self, resource: Stage) -> bool:
        return not resource.credit(self._writer)

    def _listen(self) -> None:
        watches = bool(self._resources or self._unwritten)
        if watches is not self._watches:
            self._watches = watches
            self._watch_writes(watches)
