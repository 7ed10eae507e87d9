"""A client leaves while its oneway sends wait at a limit: its groups lose it as soon as directly."""

import json
import time

import pytest
from harness.frames import FrameClient, send
from harness.ports import free_port
from harness.remoting import RemotingClient, RemotingError
from harness.rocketmq import RocketMQ
from harness.sidecar import Route, StartSluice

from proxy.protocols.rocketmq.wire.codes import RequestCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

pytestmark = [pytest.mark.integration]

_LIMITS = """
[[limits]]
kind = "topic"
name = "departing*"
rate = 5
action = "delay"
spool = true
"""
_CONSUMERS_OF_GROUP = 38
_ONEWAYS = 60


def _joins(client: str, group: str) -> RemotingCommand:
    """Return a heartbeat of a member of a group, which consumes and sends."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [],
        "unitMode": False,
    }
    body = {"clientID": client, "producerDataSet": [{"groupName": f"{group}-sends"}], "consumerDataSet": [consumer]}
    return RemotingCommand(code=RequestCode.HEART_BEAT, opaque=1, body=json.dumps(body).encode())


def _members(broker: RemotingClient, group: str) -> list[str]:
    try:
        reply = broker.call(_CONSUMERS_OF_GROUP, {"consumerGroup": group})
    except RemotingError:
        return []
    return sorted(json.loads(reply.body)["consumerIdList"])


@pytest.mark.long
def test_a_member_that_has_left_is_not_counted(rocketmq: RocketMQ, start_sluice: StartSluice) -> None:
    topic, group = "departing", "departing-group"
    route = Route(f"127.0.0.1:{free_port()}", f"{rocketmq.host}:{rocketmq.port}")
    sluice = start_sluice(routes=(route,), config=_LIMITS, covered=False)
    with RemotingClient(rocketmq.host, rocketmq.port) as broker, FrameClient(route.listen) as stays:
        broker.create_topic(topic, queues=1)
        stays.ask(_joins("stays", group))
        leaves = FrameClient(route.listen)
        leaves.ask(_joins("leaves", group))
        assert _members(broker, group) == ["leaves", "stays"]
        leaves.write(*(send(topic, body=b"%d" % number, oneway=True) for number in range(_ONEWAYS)))
        # Everything it sent has arrived.
        leaves.ask(_joins("leaves", group))
        leaves.close()
        deadline_s = time.monotonic() + 60
        while _members(broker, group) != ["stays"]:
            assert time.monotonic() < deadline_s
        assert broker.stored_messages(topic) < _ONEWAYS
        while broker.stored_messages(topic) < _ONEWAYS:
            assert time.monotonic() < deadline_s
    sluice.stop()
