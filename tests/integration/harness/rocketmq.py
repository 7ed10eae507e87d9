"""A real RocketMQ name server and broker, as many as a test wants.

The broker listens on 127.0.0.1 and may advertise another address, which is where a proxy then listens: the clients
find it through the name server and need no setting.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from harness.paths import program, rocketmq_classpath
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.remoting import RemotingClient

_BROKER_HOST = "127.0.0.1"
# What RocketMQ's own start scripts open to it.
_JAVA_OPENS = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
# A loaded CI machine takes several times the usual six seconds.
_START_TIMEOUT_S = 120.0
_ROUTE_TIMEOUT_S = 30.0
_VIP_OFFSET = -2
_HA_OFFSET = 1

_BROKER_CONF = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1={advertised_host}
bindAddress={host}
listenPort={port}
haListenPort={ha_port}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=600000
maxHashSlotNum=4000
maxIndexNum=1000
timerWheelEnable=false
transientStorePoolEnable=false
autoCreateTopicEnable=true
flushDiskType=ASYNC_FLUSH
diskMaxUsedSpaceRatio=95
# A slow disk must not make the broker refuse with the same code as the proxy: only the proxy is under test.
waitTimeMillsInSendQueue=10000
osPageCacheBusyTimeOutMills=10000
"""


class RocketMQ:
    """One running name server with one broker.

    Args:
        home: an empty directory for its configuration, store and logs.
        advertised_host: the address that clients are told; the broker itself is on 127.0.0.1.

    Attributes:
        namesrv: ``host:port`` of the name server, what clients are configured with.
        host: where the broker really listens.
        port: the broker's port, the same on the advertised address; the VIP channel's is ``vip_port``.
        advertised_host: the address that clients connect to.

    Raises:
        MissingPartError: Java or the jars are not here.
        ProcessFailedError: one of the two did not start.
    """

    def __init__(self, home: Path, *, advertised_host: str) -> None:
        self.host = _BROKER_HOST
        self.advertised_host = advertised_host
        namesrv_port = free_port(_BROKER_HOST)
        self.port = free_port(_BROKER_HOST, advertised_host, offsets=(0, _VIP_OFFSET, _HA_OFFSET))
        self.vip_port = self.port + _VIP_OFFSET
        self.namesrv = f"{_BROKER_HOST}:{namesrv_port}"
        self._namesrv_port = namesrv_port
        self._stack = contextlib.ExitStack()
        (home / "conf").mkdir(parents=True)
        with contextlib.ExitStack() as starting:
            namesrv_conf = home / "namesrv.conf"
            namesrv_conf.write_text(f"listenPort={namesrv_port}\nbindAddress={_BROKER_HOST}\n", encoding="utf-8")
            starting.enter_context(
                self._start(
                    home, "namesrv", ("-Xms128m", "-Xmx256m"), "namesrv.NamesrvStartup", "-c", str(namesrv_conf)
                )
            )
            broker_conf = home / "broker.conf"
            broker_conf.write_text(
                _BROKER_CONF.format(
                    host=self.host,
                    port=self.port,
                    ha_port=self.port + _HA_OFFSET,
                    advertised_host=advertised_host,
                    store=home / "store",
                ),
                encoding="utf-8",
            )
            starting.enter_context(
                self._start(
                    home,
                    "broker",
                    ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"),
                    "broker.BrokerStartup",
                    *("-n", self.namesrv, "-c", str(broker_conf)),
                )
            )
            self._stack = starting.pop_all()

    def create_topic(self, topic: str, *, queues: int = 4) -> str:
        """Make a topic, wait until the name server knows it, and return its name.

        Raises:
            TimeoutError: the name server did not hear of it.
        """
        with self._to_broker() as broker:
            broker.create_topic(topic, queues=queues)
        deadline = time.monotonic() + _ROUTE_TIMEOUT_S
        with RemotingClient(_BROKER_HOST, self._namesrv_port) as namesrv:
            while not namesrv.has_route(topic):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the name server has no route of {topic} after {_ROUTE_TIMEOUT_S:g} s")
                time.sleep(0.02)
        return topic

    def stored_messages(self, topic: str) -> int:
        """Return how many messages of the topic the broker holds: its own word, asked past any proxy."""
        with self._to_broker() as broker:
            return broker.stored_messages(topic)

    def close(self) -> None:
        """Stop the broker, then the name server, and wait for the end of both."""
        self._stack.close()

    def __enter__(self) -> Self:
        """Return itself; leaving the block stops both."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop both."""
        self.close()

    def _to_broker(self) -> RemotingClient:
        return RemotingClient(self.host, self.port)

    def _start(
        self, home: Path, name: str, memory: tuple[str, ...], main_class: str, *arguments: str
    ) -> contextlib.AbstractContextManager[ManagedProcess]:
        process = ManagedProcess(
            name,
            [
                program("java"),
                *_JAVA_OPENS,
                *memory,
                f"-Duser.home={home}",
                "-cp",
                rocketmq_classpath(),
                f"org.apache.rocketmq.{main_class}",
                *arguments,
            ],
            log=home / f"{name}.log",
            env={"ROCKETMQ_HOME": str(home)},
            cwd=home,
        )
        try:
            process.wait_for_line("boot success", timeout_s=_START_TIMEOUT_S)
        except BaseException:
            process.stop()
            raise
        return process


StartRocketMQ = Callable[..., RocketMQ]
"""The fixture ``start_rocketmq``: takes RocketMQ's keyword arguments."""
