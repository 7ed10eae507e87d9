"""Real RabbitMQ brokers, on loopback and their own ports, removed at the end."""

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
# Offsets of Erlang's listeners from the broker's port.
_DISTRIBUTION, _NAMES, _CTL = 1, 2, 3
_LOOPBACK: Final = "-kernel inet_dist_use_interface {127,0,0,1}"
# The home's path inside a separate Debian.
_INSIDE: Final = Path("/mnt")
# Run a command in the Debian at $1, with $2 as its home. Its mounts are private. Its process becomes the command.
_CHANGE_ROOT: Final = f"""
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount --bind "$2" "$1{_INSIDE}"
cd "$1"
shift 2
exec chroot . "$@"
"""


class RabbitMQ:
    """A running broker of one node with the user ``guest``, which stores below ``home``."""

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
            "HOME": str(seen),  # for the cookie that the broker and rabbitmqctl share
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
            # With this, its start script execs the broker, so both end together.
            "RUNNING_UNDER_SYSTEMD": "true",
            "LC_ALL": "C.UTF-8",
        }
        self._server = [*(slow_syncs(sync_ms, home, seen_at=seen) if sync_ms else []), server]
        with contextlib.ExitStack() as starting:
            # Otherwise Erlang starts one that outlives it.
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
        return self._broker.pid

    @property
    def syncs(self) -> int:
        """The number of its calls of fsync or fdatasync. Counted with ``sync_ms`` only."""
        return syncs(self._home)

    @property
    def log_lines(self) -> list[str]:
        return self._broker.lines

    def connect(self, **how: object) -> AmqpClient:
        """Return a client with a direct connection. Arguments as of AmqpClient."""
        return AmqpClient(self.address, **how)  # type: ignore[arg-type]

    def stop(self) -> None:
        """End the broker like an operator. Durable queues and persistent messages are kept."""
        self._broker.stop(timeout_s=_STOP_TIMEOUT_S)

    def kill(self) -> None:
        self._broker.kill()

    def start(self) -> None:
        """Start the broker again after `stop` or `kill`, on the same port."""
        self._broker = self._start()

    def messages(self, queue: str, *, vhost: str = "/") -> int:
        """Return the number of ready messages of a queue, asked directly."""
        with self.connect(vhost=vhost) as client:
            return int(client.call(client.open_channel(), "queue.declare", queue=queue, passive=True)["message_count"])

    def drain(self, queue: str, *, vhost: str = "/") -> list[bytes]:
        """Return the bodies of all messages in a queue, in order, consumed directly."""
        with self.connect(vhost=vhost) as client:
            channel = client.open_channel()
            wanted = client.call(channel, "queue.declare", queue=queue, passive=True)["message_count"]
            client.call(channel, "basic.consume", queue=queue, consumer_tag="drain", no_ack=True)
            return [client.expect("basic.deliver", channel=channel).body for _ in range(wanted)]

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` and return its output. Takes some seconds."""
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
        """Raise or end the broker's memory alarm, which blocks publishing connections."""
        self.ctl("set_vm_memory_high_watermark", "0.000001" if on else "0.6")

    def connections(self) -> list[dict[str, str]]:
        """Return the broker's connections with state and client."""
        columns = "pid", "state", "channels", "peer_host", "peer_port", "host", "port", "client_properties"
        return self._table("list_connections", *columns)

    def _table(self, command: str, *columns: str) -> list[dict[str, str]]:
        rows = self.ctl(command, *columns, "--no-table-headers").splitlines()
        return [dict(zip(columns, row.split("\t"), strict=True)) for row in rows]

    def close(self) -> None:
        """End everything and remove its data."""
        self._stack.close()
        shutil.rmtree(self._home / "mnesia", ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
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
"""The fixture ``start_rabbitmq``. Takes RabbitMQ's keyword arguments."""
