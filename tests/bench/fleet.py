"""Cost of a fleet in Redis: members in one process, and a redis-server beside it.

.venv/bin/python tests/bench/fleet.py --members 20 --names 10000 --active 500"""

import argparse
import socket
import subprocess
import time
from typing import Any

import trio
from coredis import Redis

from limiter.deciding.limits import Caller, Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath.fleet import Fleet, FleetConfig

_TURN_S = 0.1


async def measured(port: int, members: int, names: int, active: int, seconds: float) -> str:
    config = FleetConfig(name="bench", member="m", kind="server", nodes=[("127.0.0.1", port)])
    rules = RuleSet([Rule("topic", "*", 100, fleet=True)])
    caller = Caller("127.0.0.1", "", "main")
    fleets = [Fleet(config, now_ns=time.monotonic_ns) for _ in range(members)]
    limits = [Limits(rules, names + 1, fleet=each.member) for each in fleets]
    async with Redis("127.0.0.1", port, decode_responses=True) as client, trio.open_nursery() as nursery:
        # Its types include values that none of these figures has.
        redis: Any = client
        for fleet in fleets:
            nursery.start_soon(fleet.run)

        async def ask(numbers: range) -> None:
            for each in limits:
                now_ns = time.monotonic_ns()
                for number in numbers:
                    each.decide(now_ns, (Resource("topic", f"topic-{number:06d}"),), caller, (1,), lambda: ())
                await trio.lowlevel.checkpoint()

        for start in range(0, names, 500):
            await ask(range(start, start + 500))
            await trio.sleep(0.2)
        # Until the names that are not active any more have been returned.
        for _ in range(40):
            await ask(range(active))
            await trio.sleep(_TURN_S)
        trips, began, before = sum(each.state().round_trips for each in fleets), time.monotonic(), await redis.info()
        calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
        while time.monotonic() - began < seconds:
            await ask(range(active))
            await trio.sleep(_TURN_S)
        took, after = time.monotonic() - began, await redis.info()
        trips = sum(each.state().round_trips for each in fleets) - trips
        spent = sum(after[key] - before[key] for key in ("used_cpu_sys", "used_cpu_user"))
        calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] - calls
        read, written = (after[key] - before[key] for key in ("total_net_input_bytes", "total_net_output_bytes"))
        nursery.cancel_scope.cancel()
    failures = sum(each.state().failures for each in fleets)
    return (
        f"{members} members, {names} names, {active} active: {trips / took / members:.1f} round trips/s of a member, "
        f"{read / trips / 1e3:.1f} kB there and {written / trips / 1e3:.1f} kB back each; "
        f"Redis {spent / took:.1%} of a core, {spent / calls * 1e6:.0f} us a call; {failures} failures"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("members", 3), ("names", 10_000), ("active", 500), ("seconds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as redis:
        try:
            time.sleep(0.5)
            print(trio.run(measured, port, given.members, given.names, given.active, given.seconds))
        finally:
            redis.terminate()


if __name__ == "__main__":
    main()
