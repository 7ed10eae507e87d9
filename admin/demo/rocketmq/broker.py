"""A real RocketMQ name server and broker, what may be asked of them, and RocketMQ's own load generator."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import trio

from admin.common.errors import StartError
from admin.config.addresses import Endpoint, parse_endpoint
from admin.demo.load import Producer
from admin.demo.real import machine
from admin.demo.real.broker import ADVERTISED_HOST, BROKER_HOST, RealBroker
from admin.demo.real.child import Child
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

VIP_OFFSET: Final = -2
HA_OFFSET: Final = 1
#: An auto-created topic takes its shape from this one, and before there is one clients ask for the route of this.
TEMPLATE_TOPIC: Final = "TBW102"

#: Six seconds on an idle machine of two cores.
_START_TIMEOUT_S: Final = 120.0
_ROUTE_TIMEOUT_S: Final = 60.0
_ANSWER_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1
#: Where RocketMQ looks first how to log.
_SILENCE: Final = "rmq.logback-test.xml"
_GET_TOPIC_STATS: Final = 202
#: What RocketMQ's own start scripts open to it.
_JAVA_OPENS: Final = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
_JAR: Final = "rocketmq-example-*.jar"
#: Threads of the benchmark producer, each of which sends the next message when it has the answer to the last.
_FLOOD_THREADS: Final = 512
_FLOOD_REPORT_MS: Final = 1000
NAME_SERVER_MEMORY: Final = ("-Xms64m", "-Xmx256m")
BROKER_MEMORY: Final = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")

_LISTENER: Final = f"""\
[[listeners]]
name = "{{name}}"
listen = "{ADVERTISED_HOST}:{{port}}"
broker = "{BROKER_HOST}:{{port}}"
"""
_NAME_SERVER_CONF: Final = """\
listenPort={port}
bindAddress={host}
"""
# Messages that must not be lost: each is answered when the disk has it, and until then it keeps one of the broker's few
# threads. All else is as it comes, its fast failure above all, but for the address and for files that are small.
_BROKER_CONF: Final = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1={advertised_host}
bindAddress={bound_host}
listenPort={port}
haListenPort={ha_port}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeCommitLog=67108864
mappedFileSizeConsumeQueue=600000
maxHashSlotNum=4000
maxIndexNum=1000
timerWheelEnable=false
transientStorePoolEnable=false
autoCreateTopicEnable=true
diskMaxUsedSpaceRatio=95
flushDiskType=SYNC_FLUSH
asyncSendEnable=false
"""


def name_server_conf(port: int) -> str:
    """Return the configuration of a name server."""
    return _NAME_SERVER_CONF.format(host=BROKER_HOST, port=port)


def broker_conf(port: int, advertised_host: str, folder: Path) -> str:
    """Return the configuration of a broker that stores in a folder; of a key that follows again the last one counts."""
    return _BROKER_CONF.format(
        advertised_host=advertised_host,
        bound_host=BROKER_HOST,
        port=port,
        ha_port=port + HA_OFFSET,
        store=folder / "store",
    )


def java(classpath: str, home: Path, *options: str) -> list[str]:
    """Return a command line up to the name of the class that is run; ``home`` is where it may leave files."""
    return machine.java(classpath, home, *_JAVA_OPENS, *options)


class RocketMQ(RealBroker):
    """A name server and a broker.

    The broker binds 127.0.0.1 and advertises another address of this machine, where Sluice listens: clients find it
    through the name server, and need no setting.
    """

    name = "RocketMQ"
    program = "demo-rocketmq"
    kind = "topic"
    client = Producer
    ports: ClassVar = {
        "RocketMQ's name server": (9876, ((BROKER_HOST, 0),)),
        "the broker": (
            10911,
            # Where replicas come in it listens on all addresses, whatever bindAddress says.
            (
                *((host, at) for host in (BROKER_HOST, ADVERTISED_HOST) for at in (0, VIP_OFFSET)),
                ("0.0.0.0", HA_OFFSET),
            ),
        ),
    }

    def __init__(self, jars: Path, folder: Path, ports: Sequence[int], *, behind_sluice: bool) -> None:
        self._jars, self._folder = jars, folder
        name_server_port, port = ports
        (folder / "conf").mkdir()
        # Without it, each message that is refused fills the disk with a stack trace.
        (folder / _SILENCE).write_text("<configuration/>\n", encoding="utf-8")
        self.name_server = Endpoint(BROKER_HOST, name_server_port)
        self.address = Endpoint(BROKER_HOST, port)
        (folder / "name-server.conf").write_text(name_server_conf(name_server_port), encoding="utf-8")
        conf = broker_conf(port, ADVERTISED_HOST if behind_sluice else BROKER_HOST, folder)
        (folder / "broker.conf").write_text(conf, encoding="utf-8")
        env = {"ROCKETMQ_HOME": str(folder)}
        first = Child(
            "RocketMQ's name server",
            [
                *java(f"{jars}/*", folder, *NAME_SERVER_MEMORY),
                *("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "name-server.conf")),
            ],
            folder,
            env,
        )
        try:
            second = Child(
                "RocketMQ's broker",
                [
                    *java(f"{jars}/*", folder, *BROKER_MEMORY),
                    *("org.apache.rocketmq.broker.BrokerStartup", "-n", str(self.name_server)),
                    *("-c", str(folder / "broker.conf")),
                ],
                folder,
                env,
            )
        except BaseException:
            first.kill()
            raise
        self.processes = (first, second)

    @staticmethod
    def missing(jars: Path) -> Sequence[str]:
        """Look for Java and RocketMQ's jars."""
        found = any(jars.glob(_JAR))
        no_jars = "" if found else f"{jars} has no {_JAR}: make demo-rocketmq fetches it (Maven Central)"
        return [problem for problem in (machine.java_problem("RocketMQ"), no_jars) if problem]

    async def wait(self, names: Sequence[str]) -> Endpoint:
        """Wait until both run and know each other; topics come by themselves."""
        del names
        for process in self.processes:
            await process.wait_for_line("boot success", _START_TIMEOUT_S)
        return await self._route(TEMPLATE_TOPIC)

    def listeners(self) -> str:
        """Return the listeners of both of the broker's ports."""
        ports = {"main": self.address.port, "vip": self.address.port + VIP_OFFSET}
        return "\n".join(_LISTENER.format(name=name, port=port) for name, port in ports.items())

    def about(self) -> Sequence[tuple[str, str]]:
        """Name the load generator and the name server."""
        return (
            ("from", "RocketMQ's own org.apache.rocketmq.example.benchmark.Producer"),
            ("join in", f"any RocketMQ client, on a topic of its own; name server {self.name_server}"),
        )

    async def stored(self, name: str) -> int:
        """Ask the broker for its statistics of a topic."""
        answer = await _ask(self.address, _GET_TOPIC_STATS, {"topic": name})
        # The keys of its table are objects, which is no JSON, either; each value has both of these.
        numbers = {
            which: sum(map(int, re.findall(rf'"{which}Offset":(\d+)', answer.body.decode())))
            for which in ("max", "min")
        }
        return numbers["max"] - numbers["min"]

    def flood(self, name: str) -> Child:
        """Start the benchmark producer."""
        command = [
            # It would be on machines of its own: here it takes what broker and Sluice leave over.
            *("nice", "-n", "15"),
            *java(f"{self._jars}/*", self._folder, "-Xmx512m", f"-Drocketmq.client.logRoot={self._folder}"),
            *("org.apache.rocketmq.example.benchmark.Producer", "-n", str(self.name_server), "-t", name),
            *("-w", str(_FLOOD_THREADS), "-s", "128", "-ri", str(_FLOOD_REPORT_MS)),
        ]
        return Child("RocketMQ's benchmark producer", command, self._folder)

    @staticmethod
    def failed_of(output: str) -> int:
        """Read the last report."""
        found = re.findall(r"Send Failed: (\d+) \| Response Failed: (\d+)", output)
        return sum(map(int, found[-1])) if found else 0

    async def _route(self, topic: str) -> Endpoint:
        """Ask the name server, as clients do, where to send messages of a topic.

        Raises:
            StartError: it did not get to know a broker.
        """
        with trio.move_on_after(_ROUTE_TIMEOUT_S):
            while True:
                answer = await _ask(self.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                if answer.code == ResponseCode.SUCCESS:
                    # Keys that are numbers come without quotes, which is no JSON: the only broker's address is enough.
                    found = re.search(r'"brokerAddrs":\{"?0"?:("[^"]*")', answer.body.decode())
                    if found is not None:
                        return parse_endpoint(json.loads(found[1]))
                await trio.sleep(_POLL_S)
        raise StartError(f"the name server at {self.name_server} knows no broker after {_ROUTE_TIMEOUT_S:g} s")


async def _ask(server: Endpoint, code: int, fields: dict[str, str]) -> RemotingCommand:
    """Send one request on a connection of its own.

    Raises:
        StartError: it gave no answer.
    """
    data = bytearray()
    try:
        with trio.fail_after(_ANSWER_TIMEOUT_S):
            async with await trio.open_tcp_stream(*server) as stream:
                await stream.send_all(encode(RemotingCommand(code=code, opaque=1, language="OTHER", fields=fields)))
                while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                    chunk = await stream.receive_some()
                    if not chunk:
                        raise StartError(f"{server} closed the connection without an answer")
                    data += chunk
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise StartError(f"{server} does not answer: {error}") from None
    return decode(bytes(data))
