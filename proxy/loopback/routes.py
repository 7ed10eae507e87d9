"""What the name server answers: where a topic's queues are, and who is in the cluster.

There is one broker, and it is named by the advertised address, so that a sidecar can stand in front of it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.loopback.store import Topic

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
