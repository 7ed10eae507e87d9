"""The measured configurations of Sluice: five, each without the compiled extension and with it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from goals import SCANS
from peers import INSTALL_SLUICE, BenchError, Peer, Place, sluice_program
from rows import ALL_FEATURES, AMQP, AMQP10, FLEET, LIMITED, REFUSED, UNLIMITED

CHECK_DEADLINE_S = 60.0
# Above any load: it is decided, and nothing is refused.
PLENTY = 1_000_000_000

_UNLIMITED = """
[defaults.topic]
rate = "unlimited"
"""
_LIMITED = f"""
[defaults.topic]
rate = {PLENTY}
"""
_FLEET = f"""{_LIMITED}fleet = true

[fleet]
url = "redis://127.0.0.1:{{redis}}"
name = "bench"
"""
# Beside Sluice, with which it ends.
_WITH_REDIS = 'setpriv --pdeathsig KILL redis-server --port "$0" --save "" --bind 127.0.0.1 >/dev/null & exec "$@"'
_LIMITED_QUEUE = f"""
[[limits]]
kind = "queue"
name = "bench*"
rate = {PLENTY}
"""
# The quiet client's topic has its own limit, which a refused flood must not use.
_REFUSED = f"""
[defaults.topic]
rate = 0

[[limits]]
kind = "topic"
name = "bench999999"
rate = {PLENTY}
"""
# Rules that may apply to one send at the same time. One shadow rule is far below the load, so that it has refusals to
# report.
_ALL_FEATURES = f"""
[[limits]]
kind = "topic"
name = "bench*"
rate = {PLENTY}
bytes_per_s = {PLENTY}
fair_by = "producer_group"

[[limits]]
kind = "topic"
name = "*"
shared = true
rate = 1000
action = "shadow"

[[limits]]
kind = "client"
name = "*"
rate = {PLENTY}
bytes_per_s = {PLENTY}

[[limits]]
kind = "client"
name = "127.0.0.0/8"
rate = {PLENTY}
shared = true

[[limits]]
kind = "producer_group"
name = "*"
rate = {PLENTY}
warm_up_s = 10.0
days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]

[[limits]]
kind = "listener"
name = "default"
rate = {PLENTY}
bytes_per_s = {PLENTY}
"""


@dataclass(frozen=True)
class Sidecar:
    limits: str
    scan: str
    amqp: str = ""

    def command(self, place: Place) -> list[str]:
        command = [str(sluice_program()), "run", "--config", str(self.written(place))]
        return ["sh", "-c", _WITH_REDIS, str(self._redis(place)), *command] if "[fleet]" in self.limits else command

    def _redis(self, place: Place) -> int:
        """Return a free port, because those of the load are next to the admin address."""
        return place.admin + 10_000 if place.admin < 50_000 else place.admin - 10_000

    def written(self, place: Place) -> Path:
        config = place.scratch / "sluice.toml"
        limits = self.amqp if place.protocol in (AMQP, AMQP10) else self.limits
        # The rejection log is on, in the state's folder, as by default.
        config.write_text(
            f"""state_dir = "{place.scratch / "state"}"

[[listeners]]
protocol = "{place.protocol}"
listen = "127.0.0.1:{place.listen}"
broker = "127.0.0.1:{place.broker}"

[listeners.options]
scan = "{self.scan}"

[admin]
listen = "127.0.0.1:{place.admin}"

[bounds]
max_live_limiters = 1000000
{limits.replace("{redis}", str(self._redis(place)))}"""
        )
        return config

    def left_out(self, scratch: Path) -> str | None:
        """Return Sluice's own reason why it cannot be measured here, or None."""
        if not sluice_program().exists():
            raise BenchError(f"sluice is not installed: `{INSTALL_SLUICE}`")
        config = self.written(Place(1, 2, 3, scratch))
        check = subprocess.run(
            [str(sluice_program()), "check", str(config)],
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECK_DEADLINE_S,
        )
        return (check.stderr or check.stdout).strip().replace(f"{config}: ", "") if check.returncode else None


def _peers(name: str, limits: str, amqp: str = "") -> tuple[Peer, ...]:
    return tuple(
        Peer(
            f"{name}-{scan}",
            sidecar.command,
            (str(sluice_program()),),
            INSTALL_SLUICE,
            limited=True,
            group=name,
            left_out=None if scan == "python" else sidecar.left_out,
        )
        for scan in SCANS
        for sidecar in (Sidecar(limits, scan, amqp),)
    )


SIDECARS: tuple[Peer, ...] = (
    *_peers(UNLIMITED, _UNLIMITED),
    *_peers(LIMITED, _LIMITED, _LIMITED_QUEUE),
    *_peers(FLEET, _FLEET),
    *_peers(REFUSED, _REFUSED),
    *_peers(ALL_FEATURES, _ALL_FEATURES),
)
