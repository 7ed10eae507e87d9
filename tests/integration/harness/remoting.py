"""A client of RocketMQ's brokers and name servers, which queries their contents and fills topics."""

import itertools
import json
import re

from harness.frames import FrameClient
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

_UPDATE_AND_CREATE_TOPIC = 17
_UPDATE_AND_CREATE_GROUP = 200
_GET_TOPIC_STATS = 202
_QUEUES = 4

_opaques = itertools.count(1)


class RemotingError(RuntimeError):
    """The server answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


class RemotingClient(FrameClient):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Return the answer to a request, or raise RemotingError."""
        (answer,) = self.ask(RemotingCommand(code=code, opaque=next(_opaques), fields=fields, body=body))
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(answer.code, answer.remark or "")
        return answer

    def send(self, topic: str, messages: int) -> int:
        """Send small messages to a topic in one write. Return the number of stored ones."""
        words = {"a": "harness", "b": topic, "c": "TBW102", "d": str(_QUEUES), "f": "0", "g": "1", "h": "0", "j": "0"}
        words |= {"k": "false", "m": "false"}
        sends = [
            RemotingCommand(
                code=RequestCode.SEND_MESSAGE_V2,
                opaque=key,
                fields={**words, "e": str(key % _QUEUES), "i": f"KEYS\x01{key}\x02"},
                body=b"." * 64,
            )
            for key in itertools.islice(_opaques, messages)
        ]
        return sum(answer.code == ResponseCode.SUCCESS for answer in self.ask(*sends))

    def create_topic(self, topic: str, *, queues: int = _QUEUES, message_type: str = "") -> None:
        """Create a topic, or change its number of queues. RocketMQ 5 has types, such as FIFO."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        fields |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "topicSysFlag": "0", "order": "false"}
        if message_type:
            fields["attributes"] = f"+message.type={message_type}"
        self.call(_UPDATE_AND_CREATE_TOPIC, fields)

    def create_group(self, group: str, *, in_order: bool = False, most_retries: int = 16) -> None:
        config = {"groupName": group, "consumeMessageOrderly": in_order, "retryMaxTimes": most_retries}
        self.call(_UPDATE_AND_CREATE_GROUP, {}, json.dumps(config).encode())

    def has_route(self, topic: str) -> bool:
        try:
            self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        except RemotingError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return False
            raise
        return True

    def stored_messages(self, topic: str) -> int:
        """Return the number of the topic's messages in all queues of a broker."""
        body = self.call(_GET_TOPIC_STATS, {"topic": topic}).body.decode()
        # The keys of the offset table are objects, which no JSON parser reads. Each value has both of these.
        ends = [int(value) for value in re.findall(r'"maxOffset":(\d+)', body)]
        starts = [int(value) for value in re.findall(r'"minOffset":(\d+)', body)]
        return sum(ends) - sum(starts)

    def acknowledged_messages(self, group: str, topic: str, *, queues: int = _QUEUES) -> int:
        """Return the number of the topic's messages that a consumer group has acknowledged, in all queues."""
        acknowledged = 0
        for queue in range(queues):
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
            try:
                acknowledged += int(self.call(RequestCode.QUERY_CONSUMER_OFFSET, fields).fields["offset"])
            except RemotingError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
        return acknowledged
