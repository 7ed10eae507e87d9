"""A real RabbitMQ broker, as many as a test wants: all of it on loopback, on ports of its own, and gone at the end."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from harness.amqp import AmqpClient
from harness.disks import slow_syncs, syncs
from harness.paths import program, rabbitmq_program
from harness.ports import free_port
from harness.process import ManagedProcess

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 60.0
_CTL_TIMEOUT_S: Final = 120.0
# Erlang's own listeners are told apart from the broker's by their place behind its port.
_DISTRIBUTION, _NAMES, _CTL = 1, 2, 3
_LOOPBACK: Final = "-kernel inet_dist_use_interface {127,0,0,1}"
# Where a broker in a Debian of its own sees its home.
_INSIDE: Final = Path("/mnt")
# Runs a command in the Debian at $1, with $2 as its home. What it mounts is seen by nobody else, and goes with it; its
# process becomes the command.
_CHANGE_ROOT: Final = f"""
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount --bind "$2" "$1{_INSIDE}"
cd "$1"
shift 2
exec chroot . "$@"
"""


class RabbitMQ:
    """A broker of one node with the user ``guest``, running; what it stores lies below ``home``."""

    def __init__(
        self,
        home: Path,
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        root: Path | None = None,
        sync_ms: int = 0,
    ) -> None:
        server, self._ctl_program = (rabbitmq_program(name, root) for name in ("rabbitmq-server", "rabbitmqctl"))
        names = "epmd" if root else program("epmd")
        self.host = _HOST
        self.port = free_port(offsets=(0, _DISTRIBUTION, _NAMES, _CTL))
        self.address = f"{_HOST}:{self.port}"
        self._home = home
        self._root = root
        home.mkdir(parents=True)
        lines = {"listeners.tcp.1": self.address, "log.console": "true", "log.file": "false", **settings}
        conf = home / "rabbitmq.conf"
        conf.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()), encoding="utf-8")
        (home / "enabled_plugins").write_text("[].\n", encoding="ascii")
        seen = _INSIDE if root else home
        self._env = {
            "HOME": str(seen),  # where the cookie lies that the broker and rabbitmqctl share
            "RABBITMQ_NODENAME": f"sluice-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(seen / "mnesia"),
            "RABBITMQ_LOG_BASE": str(seen / "log"),
            "RABBITMQ_CONFIG_FILE": str(seen / conf.name),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(seen / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(seen / "pid"),
            "RABBITMQ_DIST_PORT": str(self.port + _DISTRIBUTION),
            "ERL_EPMD_PORT": str(self.port + _NAMES),
            "ERL_EPMD_ADDRESS": _HOST,
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self.port + _CTL),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self.port + _CTL),
            "RABBITMQ_CTL_ERL_ARGS": _LOOPBACK,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_LOOPBACK} +S 2:2 +sbwt none",
            # Its start script becomes the broker itself then, so that the one is ended with the other.
            "RUNNING_UNDER_SYSTEMD": "true",
            "LC_ALL": "C.UTF-8",
        }
        self._server = [*(slow_syncs(sync_ms, home, seen_at=seen) if sync_ms else []), server]
        with contextlib.ExitStack() as starting:
            # Erlang starts one by itself where there is none, which outlives it.
            self._names = ManagedProcess(
                "epmd",
                self._command(names, "-port", str(self.port + _NAMES), "-address", _HOST),
                log=home / "epmd.log",
                env=self._env,
                cwd=home,
            )
            starting.callback(self._names.kill)
            self._broker = self._start()
            starting.callback(self.kill)
            self._stack = starting.pop_all()

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return self._broker.pid

    @property
    def syncs(self) -> int:
        """How many times it has called fsync or fdatasync; counted with ``sync_ms`` only."""
        return syncs(self._home)

    @property
    def log_lines(self) -> list[str]:
        """What the broker has logged since it was started last."""
        return self._broker.lines

    def connect(self, **how: object) -> AmqpClient:
        """Return a client that is connected to it, past any proxy; takes AmqpClient's keyword arguments."""
        return AmqpClient(self.address, **how)  # type: ignore[arg-type]

    def stop(self) -> None:
        """End the broker as an operator does; durable queues and their persistent messages are kept."""
        self._broker.stop(timeout_s=_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the broker at once, by SIGKILL."""
        self._broker.kill()

    def start(self) -> None:
        """Start the broker again after `stop` or `kill`, on the same port."""
        self._broker = self._start()

    def messages(self, queue: str, *, vhost: str = "/") -> int:
        """Return how many messages of a queue are ready: its own word, asked past any proxy."""
        with self.connect(vhost=vhost) as client:
            return int(client.call(client.open_channel(), "queue.declare", queue=queue, passive=True)["message_count"])

    def drain(self, queue: str, *, vhost: str = "/") -> list[bytes]:
        """Take everything out of a queue, past any proxy, and return the bodies in their order."""
        with self.connect(vhost=vhost) as client:
            channel = client.open_channel()
            wanted = client.call(channel, "queue.declare", queue=queue, passive=True)["message_count"]
            client.call(channel, "basic.consume", queue=queue, consumer_tag="drain", no_ack=True)
            return [client.expect("basic.deliver", channel=channel).body for _ in range(wanted)]

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` and return what it printed; takes some seconds."""
        done = subprocess.run(
            self._command(self._ctl_program, "--quiet", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_CTL_TIMEOUT_S,
            check=False,
            env={**os.environ, **self._env},
            cwd=self._home,
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, done.args)
            error.add_note(done.stdout)
            raise error
        return done.stdout

    def set_memory_alarm(self, *, on: bool) -> None:
        """Raise the broker's memory alarm, which blocks connections that publish, or end it."""
        self.ctl("set_vm_memory_high_watermark", "0.000001" if on else "0.6")

    def connections(self) -> list[dict[str, str]]:
        """Return the broker's connections, and of each what it says of its state and its client."""
        columns = "pid", "state", "channels", "peer_host", "peer_port", "host", "port", "client_properties"
        return self._table("list_connections", *columns)

    def _table(self, command: str, *columns: str) -> list[dict[str, str]]:
        rows = self.ctl(command, *columns, "--no-table-headers").splitlines()
        return [dict(zip(columns, row.split("\t"), strict=True)) for row in rows]

    def close(self) -> None:
        """End everything; what it stored is removed."""
        self._stack.close()
        shutil.rmtree(self._home / "mnesia", ignore_errors=True)

    def __enter__(self) -> Self:
        """Return itself; leaving the block ends it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End it."""
        self.close()

    def _command(self, *command: str) -> list[str]:
        if self._root is None:
            return [*command]
        change = [program("unshare"), "--mount", "sh", "-ec", _CHANGE_ROOT, "sh"]
        return [*change, str(self._root), str(self._home), *command]

    def _start(self) -> ManagedProcess:
        process = ManagedProcess(
            "rabbitmq", self._command(*self._server), log=self._home / "rabbitmq.log", env=self._env, cwd=self._home
        )
        try:
            process.wait_for_line("Server startup complete", timeout_s=_START_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        return process


StartRabbitMQ = Callable[..., RabbitMQ]
"""The fixture ``start_rabbitmq``: takes RabbitMQ's keyword arguments."""
