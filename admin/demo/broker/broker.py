"""The embedded broker and name server without I/O: bytes of each connection in, answers out, timers between.

Everything runs on one thread. The caller gives every method the time, writes what a channel wants written
when it is woken, and calls ``run_timers`` when ``next_timer_ns`` has come.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from admin.demo.broker.channel import Channel, Refused, Role, answer, text, truth
from admin.demo.broker.groups import Clients, Groups
from admin.demo.broker.pulling import Pulling
from admin.demo.broker.sending import SEND_CODES, Sending
from admin.demo.broker.store import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TEMPLATE_TOPIC,
    LoopbackConfig,
    Store,
    Topic,
    TopicRefusedError,
    pack_host,
)
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

#: Clients of this version (4.9.4) on, and those that ask for it, get JSON; older ones get unquoted numeric keys.
STANDARD_JSON_VERSION = 401

_MASTER_ID = 0
#: Stands for the key until the body is text; no name or address can contain it.
_KEY_MARK = "\x00master"


def _encode(body: Mapping[str, Any], *, standard_json: bool) -> bytes:
    key = f'"{_MASTER_ID}"' if standard_json else str(_MASTER_ID)
    return msgspec.json.encode(body).replace(msgspec.json.encode(_KEY_MARK), key.encode())


def _broker_data(cluster: str, broker_name: str, address: str) -> dict[str, Any]:
    return {
        "brokerAddrs": {_KEY_MARK: address},
        "brokerName": broker_name,
        "cluster": cluster,
        "enableActingMaster": False,
    }


# What the name server answers: where a topic's queues are, and who is in the cluster.
#
# There is one broker, and it is named by the advertised address, so that a sidecar can stand in front of it.
def topic_route(topic: Topic, cluster: str, broker_name: str, address: str, *, standard_json: bool) -> bytes:
    """Return the body of the answer to GET_ROUTEINFO_BY_TOPIC."""
    queues = {
        "brokerName": broker_name,
        "perm": topic.perm,
        "readQueueNums": topic.queue_count,
        "topicSysFlag": 0,
        "writeQueueNums": topic.queue_count,
    }
    body = {
        "brokerDatas": [_broker_data(cluster, broker_name, address)],
        "filterServerTable": {},
        "queueDatas": [queues],
    }
    return _encode(body, standard_json=standard_json)


def cluster_info(cluster: str, broker_name: str, address: str) -> bytes:
    """Return the body of the answer to GET_BROKER_CLUSTER_INFO; a name server never quotes its numeric keys."""
    body = {
        "brokerAddrTable": {broker_name: _broker_data(cluster, broker_name, address)},
        "clusterAddrTable": {cluster: [broker_name]},
    }
    return _encode(body, standard_json=False)


Handler = Callable[[Channel, RemotingCommand, int], bytes | None]
"""Answers a request, or returns None for a request that is held; may raise Refused."""


class Broker:
    """The whole of it.

    Args:
        config: what is configured.
        wall_ms: Unix milliseconds, for the store's timestamps only.

    Attributes:
        advertised: ``address:port`` that routes name.
    """

    def __init__(self, config: LoopbackConfig, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._store = Store(config, pack_host("127.0.0.1", config.broker_port))
        self.advertised = ""
        self.advertise(f"{config.host}:{config.broker_port}")
        groups = Groups(config.max_groups)
        pulling = self._pulling = Pulling(config, self._store, groups)
        sending = Sending(config, self._store, wall_ms, pulling.arrived)
        clients = self._clients = Clients(self._store, groups)
        self._store.create_topic(TEMPLATE_TOPIC, config.default_queues, PERM_READ | PERM_WRITE | PERM_INHERIT)
        broker: dict[int, Handler] = {
            **dict.fromkeys(SEND_CODES, sending.send),
            RequestCode.PULL_MESSAGE: pulling.pull,
            RequestCode.LITE_PULL_MESSAGE: pulling.pull,
            RequestCode.HEART_BEAT: clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: clients.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: clients.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: clients.update_offset,
            RequestCode.GET_MAX_OFFSET: clients.max_offset,
            RequestCode.GET_MIN_OFFSET: clients.min_offset,
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

    def disconnect(self, channel: Channel) -> None:
        """Forget a connection that is gone."""
        channel.open = False
        self._pulling.forget(channel)
        self._clients.forget(channel)

    # --- Time ------------------------------------------------------------------------------------

    def next_timer_ns(self) -> int | None:
        """Return when ``run_timers`` has something to do, or None."""
        return self._pulling.next_due_ns()

    def run_timers(self, now_ns: int) -> None:
        """Do what is due: long polls end."""
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
            try:
                frame = handler(channel, request, now_ns)
            except Refused as refused:
                frame = answer(request, refused.code, refused.remark)
            except TopicRefusedError as error:
                frame = answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        if frame is not None and not request.flag & codes.FLAG_ONEWAY:
            channel.send(frame)

    def _route(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        name = text(request.fields, "topic")
        topic = self._store.topics.get(name)
        if topic is None:
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
