"""A real RabbitMQ, on ports of its own and with a folder of its own, and its own load generator, PerfTest."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from admin.config.addresses import Endpoint
from admin.demo.rabbitmq.client import Publisher, declare
from admin.demo.real import machine
from admin.demo.real.broker import ADVERTISED_HOST, BROKER_HOST, RealBroker
from admin.demo.real.child import Child

#: Not what is on PATH, which runs as a user of its own where it is started as root.
_SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_JAR: Final = "perf-test-*.jar"
#: Behind the port of AMQP: Erlang's own, for nodes and for their names.
_DISTRIBUTION, _NAMES = 1, 2
_LOOPBACK: Final = "-kernel inet_dist_use_interface {127,0,0,1}"
_START_TIMEOUT_S: Final = 180.0
#: Each has so many messages without a confirm.
_PRODUCERS, _UNCONFIRMED, _BODY_BYTES = 4, 500, 1024
#: As a small broker that shares its machine: what nobody consumes fills it within seconds, and then its memory alarm
#: blocks all that publish.
_CONF: Final = """\
listeners.tcp.1 = {address}
log.console = true
log.file = false
vm_memory_high_watermark.absolute = 256MB
disk_free_limit.absolute = 50MB
"""
_LISTENER: Final = """\
[[listeners]]
name = "main"
protocol = "amqp091"
listen = "{host}:{port}"
broker = "{broker}"
"""


class RabbitMQ(RealBroker):
    """A broker of one node, with the user ``guest``."""

    name = "RabbitMQ"
    program = "demo-rabbitmq"
    kind = "queue"
    client = Publisher
    #: While its alarm is on nothing is confirmed.
    last_answers_s = 60.0
    ports: ClassVar = {
        "the broker": (
            5672,
            (
                (ADVERTISED_HOST, 0),
                *((BROKER_HOST, at) for at in (0, _DISTRIBUTION, _NAMES)),
            ),
        )
    }

    def __init__(self, jars: Path, folder: Path, ports: Sequence[int], *, behind_sluice: bool) -> None:
        self._jars, self._folder = jars, folder
        (port,) = ports
        self.address = Endpoint(BROKER_HOST, port)
        self._clients = Endpoint(ADVERTISED_HOST if behind_sluice else BROKER_HOST, port)
        conf, plugins = folder / "rabbitmq.conf", folder / "enabled_plugins"
        conf.write_text(_CONF.format(address=self.address), encoding="utf-8")
        plugins.write_text("[].\n", encoding="ascii")
        env = {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"sluice-demo-{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(conf),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(port + _DISTRIBUTION),
            "ERL_EPMD_PORT": str(port + _NAMES),
            "ERL_EPMD_ADDRESS": BROKER_HOST,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_LOOPBACK} +sbwt none",
            # Its start script becomes the broker itself then, so that the one is ended with the other.
            "RUNNING_UNDER_SYSTEMD": "true",
            "LC_ALL": "C.UTF-8",
        }
        # Erlang starts one by itself where there is none, which outlives it.
        names = Child("Erlang's epmd", ["epmd", "-port", str(port + _NAMES), "-address", BROKER_HOST], folder, env)
        try:
            broker = Child("RabbitMQ", [str(_SERVER)], folder, env)
        except BaseException:
            names.kill()
            raise
        self.processes = (names, broker)

    @staticmethod
    def missing(jars: Path) -> Sequence[str]:
        """Look for RabbitMQ, its load generator, and Java for that."""
        problems = [machine.java_problem("RabbitMQ's load generator")]
        if not _SERVER.exists() or shutil.which("epmd") is None:
            problems.append(f"{_SERVER} is missing: install it, e.g. by apt-get install rabbitmq-server")
        if not any(jars.glob(_JAR)):
            problems.append(f"{jars} has no {_JAR}: make demo-rabbitmq fetches it (Maven Central)")
        return [problem for problem in problems if problem]

    async def wait(self, names: Sequence[str]) -> Endpoint:
        """Wait until it runs, and make the queues."""
        await self.processes[-1].wait_for_line("Server startup complete", _START_TIMEOUT_S)
        for name in names:
            await declare(self.address, name, passive=False)
        return self._clients

    def listeners(self) -> str:
        """Return the listener before its one port."""
        return _LISTENER.format(host=ADVERTISED_HOST, port=self.address.port, broker=self.address)

    def about(self) -> Sequence[tuple[str, str]]:
        """Name the load generator and the address."""
        return (
            ("from", "RabbitMQ's own PerfTest, with publisher confirms"),
            ("join in", f"any AMQP 0.9.1 client, on a queue of its own; amqp://guest:guest@{self._clients}"),
        )

    async def stored(self, name: str) -> int:
        """Ask for the messages that are ready in a queue; nobody consumes them."""
        return await declare(self.address, name, passive=True)

    def flood(self, name: str) -> Child:
        """Start PerfTest with nobody who consumes."""
        command = [
            # It would be on machines of its own: here it takes what broker and Sluice leave over.
            *("nice", "-n", "15"),
            *machine.java(f"{self._jars}/*", self._folder, "-Xmx512m"),
            *("com.rabbitmq.perf.PerfTest", "--uri", f"amqp://{self._clients}", "--predeclared", "--exchange", ""),
            *("--routing-key", name, "--queue", name, "--flag", "persistent", "--consumers", "0"),
            *("--producers", str(_PRODUCERS), "--confirm", str(_UNCONFIRMED), "--size", str(_BODY_BYTES)),
        ]
        return Child("RabbitMQ's PerfTest", command, self._folder)
