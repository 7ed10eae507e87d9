"""The script in a real Redis against its Python counterpart, on one clock set by the test."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from struct import unpack

import pytest
import trio
from coredis import Redis
from fleet_bucket import FleetRedis
from harness.ports import free_port

from limiter.fleet.member import members_in

SCRIPT = files("limiter.fleet").joinpath("bucket.lua").read_text()
# The clock of Redis cannot be set, so the line that reads it is replaced.
ON_A_SET_CLOCK = SCRIPT.replace("redis.call('TIME')", "{ tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV]) }")


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    server = shutil.which("redis-server")
    if server is None:
        pytest.fail("no redis-server here: apt-get install redis-server")
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    with subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            yield port
        finally:
            process.terminate()


async def connected(port: int) -> Redis[bytes]:
    with trio.fail_after(10):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.01)
            else:
                await stream.aclose()
                return Redis(host="127.0.0.1", port=port, decode_responses=False)


def test_the_script_reads_the_clock_in_one_place() -> None:
    assert SCRIPT.count("TIME") == 1 != ON_A_SET_CLOCK.count("TIME")


@pytest.mark.parametrize("seed", range(6))
async def test_the_script_equals_its_python_counterpart(redis_port: int, seed: int) -> None:
    walk = random.Random(seed)
    twin = FleetRedis()
    keys = [f"sluice:{{w{seed}}}:members", *(f"sluice:{{w{seed}}}:b:messages:topic:{name}" for name in "ab")]
    keys.append(f"sluice:{{w{seed}}}:edits")
    now_us, number = 1_700_000_000_000_000, 0
    spent = {(member, k): 0 for member in range(5) for k in (1, 2)}
    held = dict(spent)
    parts = dict.fromkeys(range(5), (0.0, -1))
    async with await connected(redis_port) as redis:
        for step in range(300):
            now_us += walk.choice((0, 1000, 37_123, 200_000, 200_000, 900_000, 4_000_000, -500_000))
            member = walk.randrange(5 if step // 30 % 2 else 3)
            number += walk.choice((1, 1, 1, 1, 0))
            if walk.random() < 0.05:
                twin.edits_version = b"%d m" % step
                await redis.hset(keys[-1], {"": twin.edits_version})
            leaves = walk.random() < 0.03
            part, slot = parts[member]
            args: list[str | int | float] = [
                f"m{member}",
                number,
                -1 if leaves else part,
                slot,
                2**32 - step // 50 % 2 - 1,
            ]
            for k in (1, 2):
                used = walk.randint(0, 5)
                spent[member, k] += used
                held[member, k] -= used
                if walk.random() < 0.2 or leaves:
                    held[member, k] = min(0, held[member, k])
                demand = walk.choice((0, 0.01, 3.5, 250)) if held[member, k] >= 0 else 1.0
                rate = walk.choice((0, 5, 5, 5.5, 300))
                age = walk.choice((-1, 0.2, 7))
                args += [
                    rate,
                    rate * walk.choice((1, 2)),
                    spent[member, k],
                    held[member, k],
                    walk.randint(0, 40),
                    demand,
                    age,
                ]
            said = twin.call(now_us, keys, args)
            answer = await redis.eval(ON_A_SET_CLOCK, keys, [*args, now_us // 1_000_000, now_us % 1_000_000])
            assert answer == said
            if said and walk.random() < 0.9:
                parts[member] = said[1] / 1e9, said[2]
                held[member, 1] += said[4]
                held[member, 2] += said[7]
        members = dict(members_in(await redis.hgetall(keys[0])))
        assert set(members) == set(twin.hashes[keys[0]]) - {""}
        bucket = await redis.hgetall(keys[1])
        held_there = {name.decode(): unpack(">dd", fields[:16])[1] for name, fields in bucket.items() if name}
        assert held_there == {member: fields[1] for member, fields in twin.hashes[keys[1]].items() if member}


async def test_unused_keys_expire(redis_port: int) -> None:
    async with await connected(redis_port) as redis:
        keys = ["sluice:{e}:members", "sluice:{e}:b:messages:topic:a", "sluice:{e}:edits"]
        assert await redis.eval(SCRIPT, keys, ["m", 1, 0, -1, 9, 5, 15, 0, 0, 1, 1, -1]) == [
            1,
            500_000_000,
            0,
            b"",
            1,
            1_000_000,
            0,
            b"",
        ]
        assert 7000 < await redis.ttl(keys[0]) <= 7200
        assert 10 < await redis.ttl(keys[1]) <= 13


async def test_a_call_that_comes_late_does_nothing(redis_port: int) -> None:
    async with await connected(redis_port) as redis:
        keys = ["sluice:{l}:members", "sluice:{l}:b:messages:topic:a", "sluice:{l}:edits"]
        await redis.eval(SCRIPT, keys, ["m", 2, 0, -1, 9, 5, 5, 0, 0, 1, 1, -1])
        before = await redis.hgetall(keys[1])
        assert await redis.eval(SCRIPT, keys, ["m", 1, 0, -1, 9, 5, 5, 0, 0, 1, 1, -1]) == []
        assert await redis.hgetall(keys[1]) == before


def test_the_scripts_are_in_the_package() -> None:
    for name in ("bucket.lua", "edits.lua"):
        assert Path(str(files("limiter.fleet"))).joinpath(name).is_file()
