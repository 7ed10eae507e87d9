"""The embedded broker and name server without I/O: bytes of each connection in, answers out, timers between.

Everything runs on one thread. The caller gives every method the time, writes what a channel wants written
when it is woken, and calls ``run_timers`` when ``next_timer_ns`` has come.
"""

from collections.abc import Callable, Mapping
from typing import Final

from proxy.loopback.channel import Channel, Refused, Role, answer, text, truth
from proxy.loopback.clients import Clients
from proxy.loopback.config import LoopbackConfig
from proxy.loopback.groups import Groups
from proxy.loopback.intake import DelayedFullError, Intake
from proxy.loopback.pulling import Pulling
from proxy.loopback.records import pack_host
from proxy.loopback.routes import STANDARD_JSON_VERSION, cluster_info, topic_route
from proxy.loopback.sending import SEND_CODES, Sending
from proxy.loopback.store import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TEMPLATE_TOPIC,
    Store,
    TopicRefusedError,
)
from proxy.loopback.timers import Timers
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.command import RemotingCommand

Handler = Callable[[Channel, RemotingCommand, int], bytes | None]
"""Answers a request, or returns None for a request that is held; may raise Refused."""

_NS_PER_MS: Final = 1_000_000


class Broker:
    """The whole of it.

    Args:
        config: what is configured.
        wall_ms: Unix milliseconds, for the store's timestamps only.

    Attributes:
        advertised: ``address:port`` that routes name.
        answer_delay_ms: every answer waits this long; may be changed at any time.
        requests: how many requests came, by code.
    """

    def __init__(self, config: LoopbackConfig, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._timers = Timers()
        self._groups: Groups[Channel] = Groups(config.max_groups)
        self._store = Store(config, pack_host("127.0.0.1", config.broker_port))
        self.answer_delay_ms = config.answer_delay_ms
        self.requests: dict[int, int] = {}
        self.advertised = ""
        self.advertise(config.advertise or f"{config.host}:{config.broker_port}")
        pulling = self._pulling = Pulling(config, self._store, self._groups, self._timers, self._reply)
        intake = self._intake = Intake(config, self._store, self._timers, wall_ms, pulling.arrived)
        sending = Sending(config, self._store, self._groups, intake)
        clients = self._clients = Clients(config, self._store, self._groups, intake, self._reply)
        self._store.create_topic(TEMPLATE_TOPIC, config.default_queues, PERM_READ | PERM_WRITE | PERM_INHERIT)
        for name, queue_count in config.topics.items():
            self._store.create_topic(name, queue_count)
        broker: dict[int, Handler] = {
            **dict.fromkeys(SEND_CODES, sending.send),
            RequestCode.CONSUMER_SEND_MSG_BACK: sending.send_back,
            RequestCode.END_TRANSACTION: sending.end_transaction,
            RequestCode.PULL_MESSAGE: pulling.pull,
            RequestCode.LITE_PULL_MESSAGE: pulling.pull,
            RequestCode.VIEW_MESSAGE_BY_ID: pulling.view,
            RequestCode.HEART_BEAT: clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: clients.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: clients.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: clients.update_offset,
            RequestCode.GET_MAX_OFFSET: clients.max_offset,
            RequestCode.GET_MIN_OFFSET: clients.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: clients.offset_at,
            RequestCode.LOCK_BATCH_MQ: clients.lock,
            RequestCode.UNLOCK_BATCH_MQ: clients.unlock,
        }
        name_server: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
        }
        self._handlers: Mapping[Role, Mapping[int, Handler]] = {Role.BROKER: broker, Role.NAME_SERVER: name_server}

    # --- Connections -----------------------------------------------------------------------------

    def connect(self, role: Role, host: str, port: int, wake: Callable[[], None]) -> Channel:
        """Return the channel of a new connection; ``wake`` is called when it has something to write."""
        return Channel(role, host, port, wake)

    def receive(self, channel: Channel, chunk: bytes, now_ns: int) -> None:
        """Take bytes of a connection and carry out the requests that are complete.

        Raises:
            RemoteProtocolError: the connection is to be closed.
        """
        try:
            for request in channel.frames(chunk):
                self._handle(channel, request, now_ns)
        finally:
            self._pulling.wake(now_ns)

    def disconnect(self, channel: Channel, now_ns: int) -> None:
        """Forget a connection that is gone."""
        channel.open = False
        self._pulling.forget(channel)
        self._clients.forget(channel, now_ns)

    # --- Time ------------------------------------------------------------------------------------

    def next_timer_ns(self) -> int | None:
        """Return when ``run_timers`` has something to do, or None."""
        return self._timers.next_ns()

    def run_timers(self, now_ns: int) -> None:
        """Do what is due: long polls end, delayed messages arrive, delayed answers go."""
        self._timers.run_due(now_ns)
        self._pulling.wake(now_ns)

    # --- For the demo and the tests --------------------------------------------------------------

    def advertise(self, address: str) -> None:
        """Name this ``address:port`` in routes and message ids from now on."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"advertised address {address!r}: expected address:port")
        self.advertised = address
        self._store.store_host = pack_host(host.strip("[]"), int(port))

    def create_topic(self, name: str, queue_count: int = 4) -> None:
        """Make a topic, if it is not there; some clients do not send to one that does not exist.

        Raises:
            TopicRefusedError: its name is illegal, or there are too many.
        """
        self._store.create_topic(name, queue_count)

    def stored(self, topic: str) -> int:
        """Return how many messages a topic has been given so far, those dropped since included."""
        found = self._store.topics.get(topic)
        return 0 if found is None else found.stored

    def stored_by_topic(self) -> Mapping[str, int]:
        """Return how many messages each topic has been given so far."""
        return self._store.stored()

    def group_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that a group has committed, or None."""
        found = self._groups.get(group)
        return None if found is None else found.offsets.get((topic, queue_id))

    def records(self, topic: str) -> list[bytes]:
        """Return the records that a topic still keeps; ``records.decode_record`` reads them."""
        return list(self._store.records(topic))

    @property
    def size_bytes(self) -> int:
        """Return about how much memory the stored messages take."""
        return self._store.size_bytes + self._intake.delayed_bytes

    @property
    def dropped(self) -> int:
        """Return how many stored messages were dropped to keep the bounds."""
        return self._store.dropped

    @property
    def delayed(self) -> int:
        """Return how many messages wait for a delay level."""
        return self._intake.delayed

    @property
    def held_pulls(self) -> int:
        """Return how many pulls wait for a message."""
        return self._pulling.held

    # --- Inside ----------------------------------------------------------------------------------

    def _handle(self, channel: Channel, request: RemotingCommand, now_ns: int) -> None:
        if request.flag & codes.FLAG_RESPONSE:
            return
        code = request.code
        handler = self._handlers[channel.role].get(code)
        frame: bytes | None
        if handler is None:
            frame = answer(
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {code} not supported by the embedded broker",
            )
        else:
            self.requests[code] = self.requests.get(code, 0) + 1
            try:
                frame = handler(channel, request, now_ns)
            except Refused as refused:
                frame = answer(request, refused.code, refused.remark)
            except (TopicRefusedError, DelayedFullError) as error:
                frame = answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        if frame is not None and not request.flag & codes.FLAG_ONEWAY:
            self._reply(channel, frame, now_ns)

    def _reply(self, channel: Channel, frame: bytes, now_ns: int) -> None:
        if self.answer_delay_ms:
            self._timers.at(now_ns + self.answer_delay_ms * _NS_PER_MS, lambda _now_ns: channel.send(frame))
        else:
            channel.send(frame)

    def _route(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        name = text(request.fields, "topic")
        topic = self._store.topics.get(name)
        if topic is None or (name == TEMPLATE_TOPIC and not self._config.auto_create_topics):
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}")
        standard = request.version >= STANDARD_JSON_VERSION or truth(request.fields, "acceptStandardJsonOnly")
        config = self._config
        return answer(
            request,
            body=topic_route(topic, config.cluster, config.broker_name, self.advertised, standard_json=standard),
        )

    def _cluster(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        config = self._config
        return answer(request, body=cluster_info(config.cluster, config.broker_name, self.advertised))
