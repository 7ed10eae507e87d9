"""What the name server answers."""

import json
from typing import Any

import pytest

from admin.demo.broker.channel import Role
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode


def _route(bench: Any, topic: str, **more: Any) -> Any:
    client = bench.client(Role.NAME_SERVER)
    fields = {"topic": topic, **more.pop("fields", {})}
    return client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, **more)


def test_route_names_the_advertised_address(make_bench: Any) -> None:
    bench = make_bench()
    bench.broker.advertise("127.0.0.2:10911")
    bench.broker.create_topic("orders", 3)
    body = json.loads(_route(bench, "orders").body)
    assert body == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "127.0.0.2:10911"},
                "brokerName": "loopback",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "loopback", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3}
        ],
    }
    bench.broker.advertise("[::1]:5")
    assert b'{"0":"[::1]:5"}' in _route(bench, "orders").body
    answer = bench.client().produce()
    assert answer.fields["msgId"].startswith("0000000000000000000000000000000100000005")


@pytest.mark.parametrize(
    ("version", "fields", "keys"),
    [
        (63, {}, b'{0:"'),
        (400, {}, b'{0:"'),
        (401, {}, b'{"0":"'),
        (63, {"acceptStandardJsonOnly": "true"}, b'{"0":"'),
    ],
)
def test_old_clients_get_unquoted_keys(bench: Any, version: int, fields: dict[str, str], keys: bytes) -> None:
    assert b'"brokerAddrs":' + keys in _route(bench, "TBW102", version=version, fields=fields).body


def test_template_topic_lets_producers_send_to_topics_that_do_not_exist(make_bench: Any) -> None:
    bench = make_bench(default_queues=5)
    (queues,) = json.loads(_route(bench, "TBW102").body)["queueDatas"]
    assert (queues["perm"], queues["writeQueueNums"]) == (7, 5)


def test_unknown_topic_has_no_route_until_it_is_made(bench: Any) -> None:
    answer = _route(bench, "orders")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: orders"
    bench.broker.create_topic("orders", 2)
    assert _route(bench, "orders").code == ResponseCode.SUCCESS


def test_cluster_has_one_broker(bench: Any) -> None:
    answer = bench.client(Role.NAME_SERVER).call(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert json.loads(answer.body.replace(b"{0:", b'{"0":')) == {
        "brokerAddrTable": {
            "loopback": {
                "brokerAddrs": {"0": "127.0.0.1:10911"},
                "brokerName": "loopback",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"DefaultCluster": ["loopback"]},
    }


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x"])
def test_advertised_address_is_checked(bench: Any, address: str) -> None:
    with pytest.raises(ValueError, match="expected address:port"):
        bench.broker.advertise(address)
