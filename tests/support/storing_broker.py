"""The demo's embedded broker, which here keeps messages and answers pulls, for tests of consuming."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import msgspec
from stored_records import Message, encode_record

from admin.demo.broker import Broker, Channel, Refused, Topic, answer, number, pack_host, text
from proxy.protocols.rocketmq.batch_body import BatchMessage
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

# Bits of a pull's ``sysFlag``.
_COMMIT_OFFSET: Final = 1
_SUSPEND: Final = 2

Queue = tuple[str, int]


class _HeldPull(msgspec.Struct, eq=False):
    channel: Channel
    request: RemotingCommand
    due_s: float


class StoringBroker(Broker):
    """Keeps all messages in memory. It has neither consumer groups nor tags."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[Queue, list[bytes]] = defaultdict(list)
        self._offsets: dict[tuple[str, Queue], int] = {}
        self._held: list[_HeldPull] = []
        self._now_s = 0.0
        self.handlers |= {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
        }

    def keep(
        self, channel: Channel, topic: Topic, queue_id: int, message: BatchMessage, fields: Mapping[str, str]
    ) -> str:
        stored = Message(
            topic=topic.name,
            queue_id=queue_id,
            body=message.body,
            properties=message.properties.encode(errors="replace"),
            flag=message.flag,
            sys_flag=number(fields, "f", 0),
            born_ms=number(fields, "g", 0),
            born_host=pack_host(channel.host, channel.port),
            reconsume_times=number(fields, "j", 0),
        )
        host, _, port = self.advertised.rpartition(":")
        records = self._records[topic.name, queue_id]
        record = encode_record(
            stored,
            queue_offset=len(records),
            physical_offset=sum(map(len, records[-1:])),
            store_ms=time.time_ns() // 1_000_000,
            store_host=pack_host(host, int(port)),
        )
        records.append(record)
        message_id = super().keep(channel, topic, queue_id, message, fields)
        self.tick(self._now_s)
        return message_id

    def tick(self, now_s: float) -> None:
        """Answer the held pulls with new messages, and those that have waited long enough."""
        self._now_s = now_s
        held, self._held = self._held, []
        for pull in held:
            if (frame := self._read(pull.request, waits=now_s < pull.due_s)) is None:
                self._held.append(pull)
            else:
                pull.channel.send(frame)

    def disconnected(self, channel: Channel) -> None:
        self._held = [pull for pull in self._held if pull.channel is not channel]

    def _queue(self, fields: Mapping[str, str]) -> Queue:
        name, queue_id = text(fields, "topic"), number(fields, "queueId")
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not 0 <= queue_id < len(topic.offsets):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic {name}")
        return name, queue_id

    def _pull(self, channel: Channel, request: RemotingCommand) -> bytes | None:
        fields = request.fields
        flags = number(fields, "sysFlag")
        if flags & _COMMIT_OFFSET:
            self._offsets[text(fields, "consumerGroup"), self._queue(fields)] = number(fields, "commitOffset", 0)
        frame = self._read(request, waits=bool(flags & _SUSPEND))
        if frame is None:
            wait_s = number(fields, "suspendTimeoutMillis", 0) / 1000
            self._held.append(_HeldPull(channel, request, self._now_s + wait_s))
        return frame

    def _read(self, request: RemotingCommand, *, waits: bool) -> bytes | None:
        fields = request.fields
        records = self._records[self._queue(fields)]
        offset, most = number(fields, "queueOffset"), number(fields, "maxMsgNums", 32)
        if offset >= len(records) and waits:
            return None
        found = records[offset : offset + most]
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        result = {
            "suggestWhichBrokerId": "0",
            "groupSysFlag": "0",
            "nextBeginOffset": str(offset + len(found)),
            "maxOffset": str(len(records)),
            "minOffset": "0",
            "topicSysFlag": "0",
        }
        return answer(request, code, "FOUND" if found else "OFFSET_OVERFLOW_ONE", result, b"".join(found))

    def _query_offset(self, _channel: Channel, request: RemotingCommand) -> bytes:
        offset = self._offsets.get((text(request.fields, "consumerGroup"), self._queue(request.fields)))
        if offset is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        return answer(request, fields={"offset": str(offset)})

    def _update_offset(self, _channel: Channel, request: RemotingCommand) -> bytes:
        fields = request.fields
        self._offsets[text(fields, "consumerGroup"), self._queue(fields)] = number(fields, "commitOffset")
        return answer(request)
