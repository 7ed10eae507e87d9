"""Real RocketMQ name servers and brokers."""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from harness.disks import slow_syncs
from harness.java import compiled_java
from harness.paths import ROCKETMQ, program, rocketmq_classpath
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.remoting import RemotingClient

BROKER_HOST = "127.0.0.1"
# Offsets of the broker's VIP channel and its port for replicas, from its port.
VIP_OFFSET, HA_OFFSET = -2, 1
NAME_SERVER_MEMORY = ("-Xms64m", "-Xmx256m")
BROKER_MEMORY = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
# As in RocketMQ's own start scripts.
_JAVA_OPENS = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
# For a quick start on few cores.
_JAVA_FAST = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_BROKER_CONF = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1={advertised_host}
bindAddress={bound_host}
listenPort={port}
haListenPort={ha_port}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeConsumeQueue=600000
maxHashSlotNum=4000
maxIndexNum=1000
timerWheelEnable=false
transientStorePoolEnable=false
autoCreateTopicEnable=true
diskMaxUsedSpaceRatio=95
"""
# A loaded CI machine takes several times the usual six seconds.
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 120.0
_ROUTE_TIMEOUT_S = 120.0
_FILLED_AT_ONCE = 250
_SETTINGS = {
    "mappedFileSizeCommitLog": "16777216",
    "flushDiskType": "ASYNC_FLUSH",
    "asyncSendEnable": "true",
    # With a slow disk the broker must not refuse with the proxy's code: only the proxy is under test.
    "waitTimeMillsInSendQueue": "10000",
    "osPageCacheBusyTimeOutMills": "10000",
    # Send-backs come again after a second, whatever their level.
    "messageDelayLevel": " ".join(["1s"] * 18),
}
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def java(classpath: str, home: Path, *options: str) -> list[str]:
    """Return a command line up to the main class. It leaves files in ``home`` only."""
    here = (f"-Duser.home={home}", f"-Djava.io.tmpdir={home}")
    return [program("java"), *_JAVA_FAST, *here, *_JAVA_OPENS, *options, "-cp", f"{home}:{classpath}"]


class RocketMQ:
    """A running broker and its name servers."""

    # The broker prints this once it is ready.
    ready = "boot success"

    def __init__(
        self,
        home: Path,
        *,
        advertised_host: str,
        settings: Mapping[str, str] = _NO_SETTINGS,
        flush_ms: int | None = None,
        sync_ms: int = 0,
        java_options: tuple[str, ...] = (),
        name_servers: int = 1,
    ) -> None:
        self.host = BROKER_HOST
        self.advertised_host = advertised_host
        self.namesrvs = [f"{BROKER_HOST}:{free_port()}" for _ in range(name_servers)]
        self.namesrv = self.namesrvs[0]
        self.port = free_port(offsets=(0, VIP_OFFSET, HA_OFFSET))
        self.vip_port = self.port + VIP_OFFSET
        self._stack = contextlib.ExitStack()
        (home / "conf").mkdir(parents=True)
        broker_options: tuple[str, ...] = (*BROKER_MEMORY, *java_options)
        classpath = self._classpath()
        if flush_ms is not None:
            classpath = f"{classpath}:{compiled_java(ROCKETMQ)}"
            broker_options += (f"-DslowDisk.flushMillis={flush_ms}",)
            settings = {**settings, "messageStorePlugIn": "SlowDisk"}
        with contextlib.ExitStack() as starting:
            self._name_servers = {}
            for number, address in enumerate(self.namesrvs, 1):
                namesrv_conf = home / f"namesrv-{number}.conf"
                namesrv_conf.write_text(
                    f"listenPort={_port_of(address)}\nbindAddress={BROKER_HOST}\n", encoding="utf-8"
                )
                self._name_servers[address] = self._start(
                    *(home, f"namesrv-{number}"),
                    java(self._classpath(), home, *NAME_SERVER_MEMORY, *java_options),
                    *("namesrv.NamesrvStartup", "-c", str(namesrv_conf)),
                )
                starting.callback(self._name_servers[address].kill)
            conf = home / "broker.conf"
            lines = [f"{key}={value}\n" for key, value in {**_SETTINGS, **settings}.items()]
            own = _BROKER_CONF.format(
                advertised_host=advertised_host,
                bound_host=BROKER_HOST,
                port=self.port,
                ha_port=self.port + HA_OFFSET,
                store=home / "store",
            )
            conf.write_text(own + "".join(lines), encoding="utf-8")
            slowly = slow_syncs(sync_ms, home, seen_at=home) if sync_ms else []
            self._start_broker = partial(
                self._start,
                *(home, "broker", [*slowly, *java(classpath, home, *broker_options)]),
                *self._broker_command(home, conf),
                ready=self.ready,
            )
            self._broker = self._start_broker()
            starting.callback(self.kill_broker)
            self._stack = starting.pop_all()

    def stop_broker(self) -> None:
        """End the broker like an operator. The name server continues, and messages are kept."""
        self._broker.stop(timeout_s=_STOP_TIMEOUT_S)

    def kill_broker(self) -> None:
        self._broker.kill()

    def start_broker(self) -> None:
        """Start the broker again after `stop_broker` or `kill_broker`."""
        self._broker = self._start_broker()

    def kill_name_server(self, address: str) -> None:
        if address in self._name_servers:
            self._name_servers.pop(address).kill()

    def create_topic(self, topic: str, **how: Any) -> str:
        """Create a topic, wait until all name servers know it, and return its name."""
        with self._to_broker() as broker:
            broker.create_topic(topic, **how)
        deadline = time.monotonic() + _ROUTE_TIMEOUT_S
        for address in self._name_servers:
            with RemotingClient(BROKER_HOST, _port_of(address)) as namesrv:
                while not namesrv.has_route(topic):
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{address} has no route of {topic} after {_ROUTE_TIMEOUT_S:g} s")
                    time.sleep(0.02)
        return topic

    def fill(self, topic: str, messages: int) -> None:
        """Create a topic with this many messages, directly at the broker. Each has its own key."""
        self.create_topic(topic)
        with self._to_broker() as broker:
            missing = messages
            while missing:
                # At most as many at once as a slow broker handles in time.
                missing -= broker.send(topic, min(missing, _FILLED_AT_ONCE))

    def stored_messages(self, topic: str) -> int:
        """Return the broker's number of the topic's messages, asked directly."""
        with self._to_broker() as broker:
            return broker.stored_messages(topic)

    def acknowledged_messages(self, group: str, topic: str) -> int:
        """Return the broker's number of the topic's messages acknowledged by a consumer group."""
        with self._to_broker() as broker:
            return broker.acknowledged_messages(group, topic)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _classpath(self) -> str:
        return rocketmq_classpath()

    def _broker_command(self, home: Path, conf: Path) -> tuple[str, ...]:
        del home
        return "broker.BrokerStartup", "-n", ";".join(self.namesrvs), "-c", str(conf)

    def _to_broker(self) -> RemotingClient:
        return RemotingClient(self.host, self.port)

    def _start(
        self,
        home: Path,
        name: str,
        machine: list[str],
        main_class: str,
        *arguments: str,
        ready: str = "boot success",
    ) -> ManagedProcess:
        process = ManagedProcess(
            name,
            [*machine, f"org.apache.rocketmq.{main_class}", *arguments],
            log=home / f"{name}.log",
            env={"ROCKETMQ_HOME": str(home)},
            cwd=home,
        )
        try:
            process.wait_for_line(ready, timeout_s=_START_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        return process


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


StartRocketMQ = Callable[..., RocketMQ]
"""The fixture ``start_rocketmq``. Takes RocketMQ's keyword arguments."""
