import pytest

from limiter.rules.resource import Resource
from proxy.protocols.rocketmq_grpc import messages
from proxy.protocols.rocketmq_grpc.messages import MessageCounter, read_request


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def resource(name: str, namespace: str = "") -> bytes:
    return (part(1, namespace) if namespace else b"") + part(2, name)


def message(topic: str = "orders", body: bytes = b"hello", group: str = "", message_id: str = "01AB") -> bytes:
    properties = part(3, message_id) + number(6, 1) + number(13, 2) + (part(17, group) if group else b"")
    user = part(2, part(1, "k") + part(2, "v"))
    return part(1, resource(topic)) + user + part(3, properties) + part(4, body)


def send(*all_messages: bytes) -> bytes:
    return b"".join(part(1, each) for each in all_messages)


def queue(topic: str, broker: bytes = b"") -> bytes:
    return part(1, resource(topic)) + number(2, 3) + number(3, 4) + (part(4, broker) if broker else b"")


def test_a_send_asks_for_its_topic_with_its_messages() -> None:
    asked = read_request("SendMessage", send(message(), message(), message()))
    assert asked is not None
    assert asked.resources == (Resource("topic", "orders"),)
    assert (asked.messages, asked.refusal, asked.order_key) == (3, "answered", None)


def test_the_id_of_the_first_message_is_found_once_it_is_here() -> None:
    raw = send(message(message_id="01AB"), message(message_id="01AC"))
    end = raw.index(b"01AB") + 4
    assert [messages.message_id(raw[:size]) for size in (0, 2, end - 1, end, len(raw))] == [
        b"",
        b"",
        b"",
        *[b"01AB"] * 2,
    ]


def test_sends_to_one_topic_share_their_resources() -> None:
    first, second = (read_request("SendMessage", send(message())) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.resources is second.resources


def test_a_namespace_changes_nothing_as_for_the_proxy() -> None:
    asked = read_request("SendMessage", send(part(1, resource("orders", "shop")) + part(4, b"hello")))
    assert asked is not None
    assert asked.resources == (Resource("topic", "orders"),)


def test_a_fifo_message_keeps_its_order() -> None:
    asked = read_request("SendMessage", send(message(group="account-7")))
    assert asked is not None
    assert asked.order_key == "orders\naccount-7"


def test_a_send_to_a_retry_topic_asks_for_its_group() -> None:
    asked = read_request("SendMessage", send(message("%RETRY%billing")))
    assert asked is not None
    assert asked.resources == (Resource("retry_group", "billing"),)


@pytest.mark.parametrize("nothing", [b"", part(1, b""), part(1, part(1, b""))])
def test_a_send_without_a_topic_passes_to_be_refused_by_the_proxy(nothing: bytes) -> None:
    assert read_request("SendMessage", nothing) is None


def test_the_last_of_two_topics_counts_as_for_the_proxy() -> None:
    asked = read_request("SendMessage", part(1, part(1, resource("free")) + message("orders")))
    assert asked is not None
    assert asked.resources == (Resource("topic", "orders"),)


@pytest.mark.parametrize("method", ["ReceiveMessage", "PullMessage"])
def test_a_consumer_asks_for_a_subscription_and_is_charged_by_the_answer(method: str) -> None:
    raw = part(1, resource("billing")) + part(2, queue("orders")) + number(4, 32)
    asked = read_request(method, raw)
    assert asked is not None
    assert asked.resources == (Resource("subscription", "billing@orders"),)
    assert (asked.messages, asked.consumes) == (0, True)


@pytest.mark.parametrize("method", ["ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration"])
def test_a_send_back_is_a_request_for_its_group(method: str) -> None:
    asked = read_request(method, part(1, resource("billing")) + part(2, resource("orders")) + part(3, "handle"))
    assert asked is not None
    assert asked.resources == (Resource("retry_group", "billing"),)


def test_the_end_of_a_transaction_cannot_be_refused_and_is_named_by_its_topic() -> None:
    asked = read_request("EndTransaction", part(1, resource("payments")) + part(2, "id") + number(4, 1))
    assert asked is not None
    assert (asked.resources, asked.refusal) == ((Resource("transaction", "payments"),), "impossible")


def test_every_cut_of_a_send_tells_its_topic_or_raises() -> None:
    raw = send(message(), message(body=bytes(300)))
    for size in range(len(raw)):
        try:
            asked = read_request("SendMessage", raw[:size], is_cut=True)
        except ValueError:
            assert size < raw.index(b"orders") + len("orders")
            continue
        if asked is not None:
            assert asked.resources == (Resource("topic", "orders"),)
            counter = MessageCounter()
            counter.feed(raw[:size])
            assert counter.count == asked.messages


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
def test_the_counter_counts_messages_cut_anywhere(step: int) -> None:
    raw = send(message(body=bytes(200)), part(1, resource("orders")), b"", message(body=b"")) + number(9, 1 << 40)
    counter = MessageCounter()
    for at in range(0, len(raw), step):
        counter.feed(memoryview(raw)[at : at + step])
    assert counter.count == 4


@pytest.mark.parametrize(
    "raw",
    [
        part(1, message() + part(1, resource("other"))),  # the beginning names another topic
        part(1, message()[:-1] + b"\x80\x01") + part(1, message()),  # a field beyond the end of its message
        part(1, b"\x0b\x0c"),
    ],
)
def test_the_counter_refuses_ambiguous_bodies(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        MessageCounter().feed(raw)


@pytest.mark.parametrize(
    "raw",
    [
        send(message())[:-1],
        b"\x0a",
        b"\x0a\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x00",  # Java would drop bits beyond 32
        b"\x8a\x80\x80\x80\x80\x00\x00",
        b"\x0b\x0c",
        b"\x02\x00",
        part(1, part(1, part(2, b"\xff"))),
        part(1, part(1, resource("x" * 256))),
        part(1, part(1, resource("x" * 5000))),
        part(1, part(1, b"\x12\x09abc")),
        number(2, 1)[:1] + b"\x80" * 10 + b"\x01",
    ],
)
def test_impossible_bytes_of_a_client_cannot_be_read(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_request("SendMessage", raw)


def endpoints(*addresses: tuple[str, int], scheme: int = 1) -> bytes:
    return number(1, scheme) + b"".join(part(2, part(1, host) + number(2, port)) for host, port in addresses)


def broker(at: bytes) -> bytes:
    return part(1, "broker-a") + number(2, 0) + part(3, at) + part(15, "unknown")


def routes(at: bytes) -> dict[str, bytes]:
    queues = [queue("orders", broker(at)) + number(5, each) for each in range(1, 5)]
    status = part(1, number(1, 20000) + part(2, "OK"))
    return {
        "QueryRoute": status + b"".join(part(2, each) for each in queues) + part(9, "later field"),
        "QueryAssignment": status + b"".join(part(2, part(1, each)) for each in queues),
    }


@pytest.mark.parametrize("method", sorted(messages.ROUTES))
def test_brokers_addresses_become_those_that_the_client_used(method: str) -> None:
    used = endpoints(("sluice.example.com", 8081), ("other.example.com", 8081), scheme=3)
    request = part(1, resource("orders"))
    request += part(2, used) if method == "QueryRoute" else part(2, resource("billing")) + part(3, used)
    target = messages.read_target(method, request)
    assert target == used
    rewritten = messages.rewrite_routes(method, routes(endpoints(("10.0.0.5", 34081)))[method], target)
    assert rewritten == routes(used)[method]


@pytest.mark.parametrize(
    ("host", "scheme"), [("192.0.2.7", 1), ("2001:db8::7", 2), ("sluice.example.com", 3), ("localhost", 3)]
)
def test_an_address_has_the_scheme_of_its_host(host: str, scheme: int) -> None:
    assert messages.endpoints_of(host, 8081) == endpoints((host, 8081), scheme=scheme)


@pytest.mark.parametrize("request_message", [b"", part(1, resource("orders")), part(2, number(1, 1))])
def test_a_request_may_name_no_endpoints(request_message: bytes) -> None:
    assert messages.read_target("QueryRoute", request_message) is None


def test_a_refusal_is_a_status() -> None:
    text = "[RateLimit] for orders need wait:532000microsecs, rule topic:orders"
    raw = messages.refuse("SendMessage", text)
    assert raw == part(1, number(1, 42900) + part(2, text))
    assert messages.read_answer("SendMessage", raw) == (42900, 0)


def test_a_consumer_that_was_held_sees_an_empty_poll() -> None:
    assert messages.read_answer("ReceiveMessage", messages.refuse("ReceiveMessage", "x", was_held=True)).code == 40404
    assert messages.read_answer("ReceiveMessage", messages.refuse("ReceiveMessage", "x")).code == 42900


def test_messages_of_an_answer_are_counted() -> None:
    assert messages.read_answer("ReceiveMessage", part(2, message())) == (0, 1)
    assert messages.read_answer("ReceiveMessage", part(3, number(1, 5))) == (0, 0)
    assert messages.read_answer("SendMessage", part(1, number(1, 20000)) + part(2, b"")) == (20000, 0)


def test_settings_name_the_client() -> None:
    agent = number(1, 4) + part(2, "5.1.2") + part(3, "linux")
    assert messages.read_settings(part(2, number(1, 1) + part(7, agent))) == ("GOLANG", "5.1.2")
    assert messages.read_settings(part(2, part(7, number(1, 77)))) == ("77", "")
    assert messages.read_settings(part(3, b"")) == ("", "")


def test_only_the_access_key_is_read_of_credentials() -> None:
    text = "MQv2-HMAC-SHA1 Credential=shop-1/region, SignedHeaders=x-mq-date-time, Signature=SECRET"
    assert messages.access_key(text) == "shop-1"
    assert messages.access_key("Bearer SECRET") == ""


@pytest.mark.parametrize(
    "text",
    ["XCredential=bob, Credential=eve/r", "Credential=bob,\x01Credential=eve", "X=Credential=bob, Credential=eve"],
)
def test_a_user_is_the_one_that_the_proxy_authenticates(text: str) -> None:
    assert messages.access_key(f"MQv2-HMAC-SHA1 {text}, Signature=SECRET") == "eve"
