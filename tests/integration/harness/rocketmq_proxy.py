"""RocketMQ's Proxy, which speaks gRPC, with its broker in the same process and a name server ("local" mode)."""

import json
from collections.abc import Mapping
from pathlib import Path

from harness.paths import rocketmq_proxy_classpath
from harness.ports import free_port
from harness.rocketmq import BROKER_HOST, RocketMQ

_SETTINGS = {
    # Messages with any delay, and their recall.
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    # Ask about transactions after a second.
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}


class RocketMQProxy(RocketMQ):
    """``grpc`` is its address, and ``port`` that of the broker's remoting."""

    ready = "rocketmq-proxy startup successfully"

    def __init__(self, home: Path, settings: Mapping[str, str] = _SETTINGS) -> None:
        self.grpc_port = free_port()
        self.grpc = f"{BROKER_HOST}:{self.grpc_port}"
        super().__init__(home, advertised_host=BROKER_HOST, settings=settings)

    def create_group(self, group: str, *, in_order: bool = False, most_retries: int = 16) -> str:
        with self._to_broker() as broker:
            broker.create_group(group, in_order=in_order, most_retries=most_retries)
        return group

    def _classpath(self) -> str:
        return rocketmq_proxy_classpath()

    def _broker_command(self, home: Path, conf: Path) -> tuple[str, ...]:
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self.namesrv,
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": free_port(),
            "tlsTestModeEnable": True,
        }
        file = home / "conf" / "rmq-proxy.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        return "proxy.ProxyStartup", "-pm", "local", "-bc", str(conf), "-pc", str(file)
