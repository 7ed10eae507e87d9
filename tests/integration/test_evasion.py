"""Attacks on limits through the broker's own features, counted by the broker's offsets."""

import json
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from harness.clients import java, run_client
from harness.frames import FrameClient, send
from harness.remoting import RemotingClient
from harness.rocketmq import RocketMQ, StartRocketMQ
from harness.sidecar import Sluice, StartSluice
from harness.wire_bytes import encode_batch, encode_properties

from proxy.protocols.rocketmq.batch_body import BatchMessage, BatchReader
from proxy.protocols.rocketmq.wire.codes import RequestCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

pytestmark = [pytest.mark.integration]

_PER_S = 50
_TIMES = 2000
_TIMEOUT_S = 60.0
_CREATE_TOPIC = 17
_RUNTIME_INFO = 28
_COMMIT = "8"
_ROLLBACK = "12"
_BATCH_QUEUE = "+queue.type=BatchCQ"

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(start_rocketmq: StartRocketMQ) -> RocketMQ:
    """A broker with a timer wheel, which asks after two seconds about open transactions."""
    settings = {"timerWheelEnable": "true", "transactionTimeOut": "2000", "transactionCheckInterval": "2000"}
    # Processes the end of a transaction at once, so that it does not ask again.
    settings |= {"transactionOpBatchInterval": "10"}
    return start_rocketmq(settings=settings)


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: RocketMQ) -> Sluice:
    return start_sluice(broker, limits=[f"topic:limited-*={_PER_S}/s", "topic:closed-*=0/s"])


@pytest.fixture
def through(sidecar: Sluice) -> Iterator[FrameClient]:
    with FrameClient(sidecar.routes[0].listen) as client:
        yield client


@pytest.fixture
def past(broker: RocketMQ) -> Iterator[FrameClient]:
    with FrameClient(f"{broker.host}:{broker.port}") as client:
        yield client


@dataclass
class _Watched:
    """A topic, and the messages stored in it since then."""

    broker: RocketMQ
    topic: str
    began_s: float = field(default_factory=time.monotonic)

    def stored(self) -> int:
        # An answered message counts once it has moved from the commit log into its queues.
        with FrameClient(f"{self.broker.host}:{self.broker.port}") as client:
            while True:
                (answer,) = client.ask(RemotingCommand(code=_RUNTIME_INFO, opaque=next(_numbers)))
                if json.loads(answer.body)["table"]["dispatchBehindBytes"] == "0":
                    break
        return self.broker.stored_messages(self.topic)

    def check(self, largest_cost: int = 1) -> None:
        """Check stored messages against the bound: the limit over the time, a burst of a second, and a debt."""
        stored, seconds = self.stored(), time.monotonic() - self.began_s
        assert stored <= _PER_S * seconds + _PER_S + largest_cost - 1, f"{stored} stored in {seconds:.1f} s"

    def wait_for(self, messages: int) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while self.stored() < messages:
            assert time.monotonic() < deadline_s, f"{self.stored()} stored of {messages}"
            time.sleep(0.1)


@pytest.fixture
def watched(broker: RocketMQ) -> Callable[..., _Watched]:
    def make(prefix: str = "limited", attributes: str = "") -> _Watched:
        topic = f"{prefix}-{next(_numbers)}"
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        fields |= {"topicFilterType": "SINGLE_TAG", "order": "false", "attributes": attributes}
        with RemotingClient(broker.host, broker.port) as client:
            client.call(_CREATE_TOPIC, fields)
        return _Watched(broker, topic)

    return make


def _with(command: RemotingCommand, properties: Mapping[str, str], *, sys_flag: int = 0) -> RemotingCommand:
    # The broker does not ask about an old half message.
    born = {"g": str(int(time.time() * 1000))}
    command.fields = {**command.fields, **born, "i": encode_properties(properties), "f": str(sys_flag)}
    return command


def _to_wheel(topic: str) -> RemotingCommand:
    """Return the broker's own message for its timer wheel."""
    due_ms = int(time.time() * 1000) + 1000
    properties = {
        "TIMER_OUT_MS": str(due_ms),
        "REAL_TOPIC": topic,
        "REAL_QID": "0",
        "UNIQ_KEY": f"{next(_numbers):032}",
    }
    return _with(send("rmq_sys_wheel_timer"), properties)


def _end(answer: RemotingCommand, *, what: str = _COMMIT, group: str = "producers") -> RemotingCommand:
    """Return the end of a transaction, for the message of an answer."""
    fields = {
        "producerGroup": group,
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": str(int(answer.fields["msgId"][-16:], 16)),
        "commitOrRollback": what,
        "fromTransactionCheck": "false",
        "msgId": "id",
    }
    return RemotingCommand(code=RequestCode.END_TRANSACTION, opaque=next(_numbers) + 1_000_000, fields=fields)


def test_the_timer_wheel_does_not_evade_a_limit(
    through: FrameClient, past: FrameClient, watched: Callable[..., _Watched], sidecar: Sluice
) -> None:
    limited, closed, control = watched(), watched("closed"), watched("control")
    through.ask(*(_to_wheel(limited.topic) for _ in range(_TIMES)), *(_to_wheel(closed.topic) for _ in range(100)))
    past.ask(_to_wheel(control.topic))
    # The wheel keeps order.
    control.wait_for(1)
    limited.check()
    assert (limited.stored(), closed.stored()) == (0, 0)
    assert sidecar.metrics().total("sluice_rule_refused_total", rule="internal_topic") == _TIMES + 100


def test_repeated_commits_do_not_evade_a_limit(
    through: FrameClient, past: FrameClient, watched: Callable[..., _Watched]
) -> None:
    limited, control = watched(), watched("control")
    for topic, client in ((limited.topic, through), (control.topic, past)):
        properties = {"PGROUP": "producers", "REAL_TOPIC": topic, "REAL_QID": "0", "UNIQ_KEY": "a"}
        (answer,) = client.ask(_with(send(topic), properties))
        times = _TIMES if client is through else 10
        client.ask(*(_end(answer) for _ in range(times)))
    assert control.stored() == 11, "what the broker does by itself"
    limited.check()
    assert limited.stored() == 1


# Marks a message as a half message.
_HALF = {"TRAN_MSG": "true", "PGROUP": "producers"}


def _plain(target: str, **properties: str) -> RemotingCommand:
    """Return an unlimited send, of which a commit would store a copy in the target."""
    named = {"PGROUP": "producers", "REAL_TOPIC": target, "REAL_QID": "0", "UNIQ_KEY": f"of {next(_numbers)}"}
    return _with(send("free"), named | properties)


def _half(opaque: int) -> RemotingCommand:
    half = _with(send("free"), _HALF | {"UNIQ_KEY": f"of {next(_numbers)}"}, sys_flag=4)
    half.opaque = opaque
    return half


def _without_a_number(client: FrameClient, target: str) -> list[RemotingCommand]:
    """Let the broker number it, and guess the number."""
    header = json.loads(encode(_plain(target))[8:].rpartition(b"}")[0] + b"}")
    del header["opaque"]
    raw = json.dumps(header).encode()
    whole = struct.pack(">II", 5 + len(raw), len(raw)) + raw + b"x"
    answers = []
    for _ in range(10):
        client._socket.sendall(whole)
        (first,) = client.read()
        halves = [_half(first.opaque + more) for more in range(1, 30)]
        client._socket.sendall(whole + b"".join(map(encode, halves)))
        answers += client.read(1 + len(halves))
    return answers


def _with_a_number_in_use(client: FrameClient, target: str) -> list[RemotingCommand]:
    answers = []
    for _ in range(50):
        plain = _plain(target)
        refused = send("rmq_sys_wheel_timer")
        refused.opaque = plain.opaque
        client.write(plain)
        client.write(refused)
        client.write(_half(plain.opaque))
        answers += client.read(3)
    return answers


def _as_an_older_send(client: FrameClient, target: str) -> list[RemotingCommand]:
    plain = _plain(target)
    names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId"}
    names |= {"f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties"}
    fields = {name: plain.fields[short] for short, name in names.items()}
    plain.code = RequestCode.SEND_MESSAGE
    plain.fields = fields | {"sysFlag": "4", "i": encode_properties(_HALF)}
    return client.ask(plain)


def _as_a_reply(client: FrameClient, target: str) -> list[RemotingCommand]:
    name = f"replies-{next(_numbers)}"
    body = json.dumps({"clientID": name, "consumerDataSet": [], "producerDataSet": [{"groupName": "producers"}]})
    client.ask(RemotingCommand(code=RequestCode.HEART_BEAT, opaque=next(_numbers) + 5_000_000, body=body.encode()))
    plain = _plain(target, **_HALF, REPLY_TO_CLIENT=name, CORRELATION_ID="1")
    plain.code, plain.fields["f"] = RequestCode.SEND_REPLY_MESSAGE_V2, "4"
    client.write(plain)
    pushed = _read_past_checks(client)
    client.write(RemotingCommand(code=0, opaque=pushed.opaque, flag=1))
    return [_read_past_checks(client)]


def _read_past_checks(client: FrameClient) -> RemotingCommand:
    """Read past the broker's questions about half messages, which come at any time."""
    while (command := client.read()[0]).code == RequestCode.CHECK_TRANSACTION_STATE:
        pass
    return command


@pytest.mark.parametrize("trick", [_without_a_number, _with_a_number_in_use, _as_an_older_send, _as_a_reply])
def test_plain_message_is_not_committed_as_a_half_message(
    through: FrameClient,
    past: FrameClient,
    watched: Callable[..., _Watched],
    trick: Callable[[FrameClient, str], list[RemotingCommand]],
) -> None:
    closed, control = watched("closed"), watched("control")
    for topic, client in ((closed.topic, through), (control.topic, past)):
        told = trick(client, topic)
        answers = [answer for answer in told if len(answer.fields.get("msgId", "")) == 32]
        assert answers, told
        ends = [_end(answer) for answer in answers]
        client.ask(*ends)
    assert control.stored() > 0, "what the broker does by itself"
    assert closed.stored() == 0


_HIDDEN = {
    "as a commit": lambda answer, _: _end(answer),
    "as a send": lambda _, topic: send(topic),
}


@pytest.mark.parametrize("hidden", _HIDDEN.values(), ids=_HIDDEN)
def test_header_that_only_the_broker_can_read_is_no_way_around_a_limit(
    sidecar: Sluice, past: FrameClient, watched: Callable[..., _Watched], hidden: Callable[..., RemotingCommand]
) -> None:
    closed, control = watched("closed"), watched("control")
    for topic, address in (
        (closed.topic, sidecar.routes[0].listen),
        (control.topic, f"{closed.broker.host}:{closed.broker.port}"),
    ):
        (plain,) = past.ask(_plain(topic))
        whole = encode(hidden(plain, topic))
        raw = re.sub(rb'"code":([0-9]+)', rb'"code":\1L', whole[8 : 8 + int.from_bytes(whole[5:8])])
        body = whole[8 + int.from_bytes(whole[5:8]) :]
        with FrameClient(address) as client:
            client._socket.sendall(struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body)
            if topic == control.topic:
                (answer,) = client.read()
                assert answer.code == 0
            else:
                assert client.read_to_end() == []
    control.wait_for(1)
    assert closed.stored() == 0


def test_delayed_message_is_not_committed(
    through: FrameClient, past: FrameClient, watched: Callable[..., _Watched]
) -> None:
    limited, control = watched(), watched("control")
    for topic, client in ((limited.topic, through), (control.topic, past)):
        properties = {"PGROUP": "producers", "DELAY": "1", "UNIQ_KEY": "a"}
        (answer,) = client.ask(_with(send(topic), properties))
        client.ask(*(_end(answer) for _ in range(10)))
    control.wait_for(11)
    assert limited.stored() == 1


def test_a_half_message_is_stored_once_after_any_number_of_commits(
    through: FrameClient, past: FrameClient, watched: Callable[..., _Watched]
) -> None:
    limited, control = watched(), watched("control")
    for topic, client in ((limited.topic, through), (control.topic, past)):
        properties = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": f"of {topic}"}
        (answer,) = client.ask(_with(send(topic), properties, sys_flag=4))
        client.ask(*(_end(answer) for _ in range(20)))
    assert (limited.stored(), control.stored()) == (1, 20)


def test_transaction_that_the_broker_asks_about_is_committed(
    through: FrameClient, past: FrameClient, watched: Callable[..., _Watched]
) -> None:
    """The sidecar has not seen the half message, as after a restart."""
    limited = watched()
    heartbeat = RemotingCommand(
        code=RequestCode.HEART_BEAT,
        opaque=next(_numbers),
        body=b'{"clientID":"asked","consumerDataSet":[],"producerDataSet":[{"groupName":"asked"}]}',
    )
    through.ask(heartbeat)
    properties = {"TRAN_MSG": "true", "PGROUP": "asked", "UNIQ_KEY": f"of {limited.topic}"}
    (answer,) = past.ask(_with(send(limited.topic), properties, sys_flag=4))
    (refused,) = through.ask(_end(answer, group="asked"))
    assert (refused.code, limited.stored()) == (1, 0)
    # If the answer takes long, the broker asks again, about a new copy.
    for _ in range(3):
        (asked,) = through.read()
        assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
        answer.fields = {
            "queueOffset": asked.fields["tranStateTableOffset"],
            "msgId": f"{int(asked.fields['commitLogOffset']):032X}",
        }
        through.ask(*(_end(answer, group="asked") for _ in range(20)))
        if limited.stored():
            break
    assert limited.stored() == 1


@pytest.mark.parametrize("before", [pytest.param((), marks=pytest.mark.long), (_ROLLBACK,)])
def test_transaction_that_takes_long_is_committed_as_its_send_was_answered(
    through: FrameClient, watched: Callable[..., _Watched], before: Sequence[str]
) -> None:
    """The broker has asked meanwhile, and was even told to roll it back. Directly, the message is stored."""
    limited, group = watched(), f"long-{len(before)}"
    clients = f'{{"clientID":"{group}","consumerDataSet":[],"producerDataSet":[{{"groupName":"{group}"}}]}}'
    through.ask(RemotingCommand(code=RequestCode.HEART_BEAT, opaque=next(_numbers), body=clients.encode()))
    properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"of {limited.topic}"}
    (answer,) = through.ask(_with(send(limited.topic), properties, sys_flag=4))
    (asked,) = through.read()
    assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
    asked.fields |= {
        "queueOffset": asked.fields["tranStateTableOffset"],
        "msgId": f"{int(asked.fields['commitLogOffset']):032X}",
    }
    through.ask(*(_end(asked, what=what, group=group) for what in before))
    ended = through.ask(*(_end(each, group=group) for each in (answer, asked, answer)))
    assert sorted(each.code for each in ended) == [0, 1, 1]
    assert limited.stored() == 1


@pytest.mark.long
@pytest.mark.parametrize("serialize", ["JSON", "ROCKETMQ"])
def test_a_java_clients_transactions_end_as_requested(
    broker: RocketMQ, sidecar: Sluice, client_home: Path, serialize: str
) -> None:
    def refused() -> float:
        return sidecar.metrics().total("sluice_rule_refused_total", rule="unknown_transaction")

    topic, group = broker.create_topic(f"transactions-{serialize}"), f"java-{serialize}"
    before = refused()
    options = [f"-Drocketmq.serialize.type={serialize}"]
    arguments = (broker.namesrv, group, topic, "20", "5", "2")
    command = java("TransactionalProducer.java", *arguments, home=client_home, options=options)
    report = run_client(command, home=client_home, seconds=100)
    assert report == {"asked": True}
    assert broker.stored_messages(topic) == 22
    assert refused() == before
    ends = sidecar.metrics().total("sluice_requests_total", kind="transaction", resource=group, verdict="pass")
    assert ends >= 27


def test_message_does_not_say_itself_as_how_many_it_counts(
    through: FrameClient, past: FrameClient, watched: Callable[..., _Watched]
) -> None:
    limited, control = (watched(prefix, _BATCH_QUEUE) for prefix in ("limited", "control"))
    inner = {"INNER_NUM": "1000", "INNER_BASE": "0", "UNIQ_KEY": "a"}
    in_batch = [BatchMessage(b"x", encode_properties(inner))]
    for watch, client in ((limited, through), (control, past)):
        client.ask(_with(send(watch.topic), inner, sys_flag=128))
    control.wait_for(1000)
    for watch, client in ((limited, through), (control, past)):
        hidden = send(watch.topic, batch=1)
        hidden.body = encode_batch(in_batch)
        client.ask(hidden)
    limited.check()
    assert limited.stored() == 0


def test_bodies_that_come_slowly_keep_to_the_limit(
    sidecar: Sluice, watched: Callable[..., _Watched], broker: RocketMQ
) -> None:
    limited, messages = watched(), 500  # the maximum is 550: burst and debt
    clients = [FrameClient(sidecar.routes[0].listen) for _ in range(50)]
    frames = [encode(send(limited.topic, batch=messages)) for _ in clients]
    beginning = len(frames[0]) - (messages - 1) * (len(frames[0]) // messages)
    read = sidecar.metrics().total("sluice_bytes_total", source="client")
    for client, frame in zip(clients, frames, strict=True):
        client._socket.sendall(frame[:beginning])
    while sidecar.metrics().total("sluice_bytes_total", source="client") < read + len(frames) * beginning:
        pass
    for client, frame in zip(clients, frames, strict=True):
        client._socket.sendall(frame[beginning:])
    answers = [client.read()[0].code for client in clients]
    for client in clients:
        client.close()
    limited.check(largest_cost=messages)
    assert limited.stored() == messages * answers.count(0) >= messages


def test_an_invalid_batch_costs_no_more_than_a_message(through: FrameClient, watched: Callable[..., _Watched]) -> None:
    limited = watched()
    no_batch = send(limited.topic, batch=1)
    no_batch.body = b"\xff" * (4 << 20)
    through.ask(no_batch)
    through.ask(*(send(limited.topic) for _ in range(20)))
    assert limited.stored() == 20


def test_a_malformed_batch_is_refused_and_blocks_no_other(
    through: FrameClient, watched: Callable[..., _Watched], sidecar: Sluice
) -> None:
    limited = watched()
    malformed = send(limited.topic, batch=1)
    malformed.body = bytes(16) + (bytes(4) + b"\xff\xf0") * 100 + bytes(6)
    answers = through.ask(*[malformed] * 5)
    assert [answer.code for answer in answers] == [13] * 5
    through.ask(*(send(limited.topic) for _ in range(20)))
    assert limited.stored() == 20
    assert sidecar.metrics().total("sluice_rule_refused_total", rule="malformed_batch") == 5


_ONE = encode_batch([BatchMessage(b"x")])
_HIDING = encode_batch([BatchMessage(struct.pack(">i", 26) + bytes(20))])
# In a batch queue's reading, no length here is 0, which would be an endless loop in the broker.
_BODIES = {
    "sound": ("", _ONE * 5),
    "another_total": ("", struct.pack(">i", 7) + _ONE[4:] + _ONE),
    "no_batch": ("", b"\xff" * 1000),
    "cut_off": ("", (_ONE * 5)[:-1]),
    "overlapping": ("", bytes(16) + (bytes(4) + b"\xff\xf0") * 20 + bytes(6)),
    "overlapping_without_an_end": ("", bytes(16) + (bytes(4) + b"\xff\xf0") * 20 + bytes(20)),
    "sound_for_a_batch_queue": (_BATCH_QUEUE, _ONE * 5),
    "no_batch_for_a_batch_queue": (_BATCH_QUEUE, b"\xff" * 1000),
    "cut_off_for_a_batch_queue": (_BATCH_QUEUE, (_ONE * 5)[:-1]),
    "two_for_a_batch_queue": (_BATCH_QUEUE, struct.pack(">i", 20) + _HIDING[4:]),
    "too_many_for_a_batch_queue": (_BATCH_QUEUE, struct.pack(">i", 4) * 32_768),
}


@pytest.mark.parametrize(("attributes", "body"), _BODIES.values(), ids=_BODIES)
def test_broker_stores_of_a_body_what_is_counted(
    past: FrameClient, watched: Callable[..., _Watched], attributes: str, body: bytes
) -> None:
    topic = watched("control", attributes)
    batch = send(topic.topic, batch=1)
    batch.body = body
    if attributes:
        batch = _with(batch, {"UNIQ_KEY": "a"})
    (answer,) = past.ask(batch)
    if answer.code == 0:
        topic.wait_for(1)
    stored, reader = topic.stored(), BatchReader()
    assert reader.resume(body)
    counted = "malformed" if reader.malformed else reader.count
    print(f"{stored} stored of {counted} counted, answer {answer.code} {answer.remark}")
    assert reader.malformed or stored == reader.count
