"""A real RocketMQ name server and broker, what may be asked of them, and RocketMQ's own load generator.

The broker binds 127.0.0.1 and advertises another address of this machine, where Sluice listens: clients find it
through the name server, and need no setting.
"""

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

import trio

from admin.common.errors import StartError
from admin.config.addresses import Endpoint, parse_endpoint
from admin.demo.rocketmq.child import Child
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

BROKER_HOST: Final = "127.0.0.1"
#: Where clients are sent, and Sluice listens. All of 127/8 is this machine.
ADVERTISED_HOST: Final = "127.0.0.2"
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
NAME_SERVER_MEMORY: Final = ("-Xms64m", "-Xmx256m")
BROKER_MEMORY: Final = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")

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


class Ports(NamedTuple):
    """Where everything listens; the VIP channel's port and the replicas' go with the broker's."""

    name_server: int
    broker: int
    admin: int


class RocketMQ(NamedTuple):
    """A running name server and broker."""

    name_server: Endpoint
    broker: Endpoint
    processes: tuple[Child, Child]

    async def route(self, topic: str) -> Endpoint:
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

    async def stored(self, topic: str) -> int:
        """Ask the broker itself, past any proxy, how many messages of a topic it holds."""
        answer = await _ask(self.broker, _GET_TOPIC_STATS, {"topic": topic})
        # The keys of its table are objects, which is no JSON, either; each value has both of these.
        numbers = {
            which: sum(map(int, re.findall(rf'"{which}Offset":(\d+)', answer.body.decode())))
            for which in ("max", "min")
        }
        return numbers["max"] - numbers["min"]


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
    # Quickly up on few cores, and quickly gone.
    fast = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    # Nor does it leave anything outside its folder when it is killed.
    here = ("-XX:-UsePerfData", f"-Duser.home={home}", f"-Djava.io.tmpdir={home}")
    return ["java", *_JAVA_OPENS, *fast, *here, *options, "-cp", f"{home}:{classpath}"]


def start(jars: Path, folder: Path, ports: Ports, *, advertised_host: str = ADVERTISED_HOST) -> RocketMQ:
    """Start both; ``wait`` says when they can be used.

    Args:
        jars: folder of RocketMQ's jars and of what they need.
        folder: an empty one, for configuration, store and logs.
        ports: where they listen.
        advertised_host: where the broker sends clients; its own address for one without Sluice.
    """
    (folder / "conf").mkdir()
    # Without it, each message that is refused fills the disk with a stack trace.
    (folder / _SILENCE).write_text("<configuration/>\n", encoding="utf-8")
    name_server = Endpoint(BROKER_HOST, ports.name_server)
    (folder / "name-server.conf").write_text(name_server_conf(ports.name_server), encoding="utf-8")
    conf = broker_conf(ports.broker, advertised_host, folder)
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
                *("org.apache.rocketmq.broker.BrokerStartup", "-n", str(name_server)),
                *("-c", str(folder / "broker.conf")),
            ],
            folder,
            env,
        )
    except BaseException:
        first.kill()
        raise
    return RocketMQ(name_server, Endpoint(BROKER_HOST, ports.broker), (first, second))


async def wait(rocketmq: RocketMQ) -> Endpoint:
    """Wait until both run and know each other; returns where clients are sent.

    Raises:
        StartError: they did not in time.
    """
    for process in rocketmq.processes:
        await process.wait_for_line("boot success", _START_TIMEOUT_S)
    return await rocketmq.route(TEMPLATE_TOPIC)


def flood(jars: Path, folder: Path, name_server: Endpoint, topic: str, *options: str) -> Child:
    """Start RocketMQ's benchmark producer, which sends as fast as the answers come until it is killed."""
    command = [
        # It would be on machines of its own: here it takes what broker and Sluice leave over.
        *("nice", "-n", "15"),
        *java(f"{jars}/*", folder, "-Xmx512m", f"-Drocketmq.client.logRoot={folder}"),
        *("org.apache.rocketmq.example.benchmark.Producer", "-n", str(name_server), "-t", topic, *options),
    ]
    return Child("RocketMQ's benchmark producer", command, folder)


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
