"""The embedded broker and name server without I/O: bytes of each connection in, answers out.

Everything runs on one thread. Both servers answer the same requests: whoever asks the wrong one gets an answer too.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from admin.demo.broker.channel import Channel, Refused, answer, text
from admin.demo.broker.consuming import Consuming
from admin.demo.broker.sending import SEND_CODES, Sending
from admin.demo.broker.store import TEMPLATE_TOPIC, IllegalNameError, Store, Topic, pack_host
from admin.demo.frames import cut
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

#: Clients of this version (4.9.4) on, and those that ask for it, get JSON; older ones get unquoted numeric keys.
_STANDARD_JSON_VERSION: Final = 401
_CLUSTER: Final = "DefaultCluster"
_BROKER_NAME: Final = "loopback"
_READ_AND_WRITE: Final = 6
#: As above, and topics made by a first message take their shape from this one.
_TEMPLATE: Final = 7

Handler = Callable[[Channel, RemotingCommand], bytes | None]
"""Answers a request, or returns None for a request that is held; may raise Refused."""


def topic_route(topic: Topic, address: str, *, standard_json: bool) -> bytes:
    """Return the body of the answer to GET_ROUTEINFO_BY_TOPIC.

    There is one broker, and it is named by the advertised address, so that a sidecar can stand in front of it.
    """
    broker = {
        "brokerAddrs": {"0": address},
        "brokerName": _BROKER_NAME,
        "cluster": _CLUSTER,
        "enableActingMaster": False,
    }
    queues = {
        "brokerName": _BROKER_NAME,
        "perm": _TEMPLATE if topic.name == TEMPLATE_TOPIC else _READ_AND_WRITE,
        "readQueueNums": len(topic.queues),
        "topicSysFlag": 0,
        "writeQueueNums": len(topic.queues),
    }
    body = msgspec.json.encode({"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]})
    return body if standard_json else body.replace(b'{"0":', b"{0:")


class Broker:
    """Name server and broker.

    Attributes:
        advertised: ``address:port`` that routes name.
    """

    def __init__(self) -> None:
        self._store = Store()
        self._consuming = Consuming(self._store)
        self.advertised = ""
        sending, consuming = Sending(self._store), self._consuming
        self._handlers: Mapping[int, Handler] = {
            **dict.fromkeys(SEND_CODES, sending.send),
            RequestCode.HEART_BEAT: consuming.heartbeat,
            RequestCode.UNREGISTER_CLIENT: consuming.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: consuming.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: consuming.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: consuming.update_offset,
            RequestCode.GET_MAX_OFFSET: consuming.max_offset,
            RequestCode.GET_MIN_OFFSET: consuming.min_offset,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
        }

    def receive(self, channel: Channel, data: bytearray, now_s: float) -> None:
        """Take the complete requests off ``data`` and carry them out.

        Raises:
            RemoteProtocolError: the connection is to be closed.
        """
        try:
            for request in cut(data):
                self._handle(channel, request, now_s)
        finally:
            self._consuming.answer_held(now_s)

    def end_long_polls(self, now_s: float) -> None:
        """Answer the pulls that have waited long enough; to be called a few times a second."""
        self._consuming.answer_held(now_s)

    def disconnect(self, channel: Channel) -> None:
        """Forget a connection that is gone."""
        self._consuming.forget(channel)

    def advertise(self, address: str) -> None:
        """Name this ``address:port`` in routes and message ids from now on."""
        self.advertised = address
        host, _, port = address.rpartition(":")
        self._store.store_host = pack_host(host, int(port))

    def create_topic(self, name: str, queue_count: int = 4) -> None:
        """Make a topic, if it is not there; some clients do not send to one that does not exist.

        Raises:
            IllegalNameError: no topic may have this name.
        """
        self._store.create_topic(name, queue_count)

    def stored_by_topic(self) -> Mapping[str, int]:
        """Return how many messages each topic has been given so far, those dropped since included."""
        return self._store.stored()

    @property
    def held_pulls(self) -> int:
        """Return how many pulls wait for a message."""
        return self._consuming.held_pulls

    def _handle(self, channel: Channel, request: RemotingCommand, now_s: float) -> None:
        if request.flag & codes.FLAG_RESPONSE:
            return
        code = request.code
        handler = self._handlers.get(code, _not_supported)
        if code in {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}:
            handler = partial(self._consuming.pull, now_s=now_s)
        try:
            frame = handler(channel, request)
        except Refused as refused:
            frame = answer(request, refused.code, refused.remark)
        except IllegalNameError as error:
            frame = answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        if frame is not None and not request.flag & codes.FLAG_ONEWAY:
            channel.send(frame)

    def _route(self, _channel: Channel, request: RemotingCommand) -> bytes:
        name = text(request.fields, "topic")
        topic = self._store.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}")
        asked = request.fields.get("acceptStandardJsonOnly", "").lower() == "true"
        standard_json = asked or request.version >= _STANDARD_JSON_VERSION
        return answer(request, body=topic_route(topic, self.advertised, standard_json=standard_json))


def _not_supported(_channel: Channel, request: RemotingCommand) -> bytes:
    remark = f" request type {request.code} not supported by the embedded broker"
    return answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
