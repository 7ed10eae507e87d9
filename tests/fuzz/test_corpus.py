"""Inputs of the fuzz targets: kept ones, seeds, and random changes of both."""

from pathlib import Path
from random import Random

import pytest
from fuzz_targets import NATIVE, TARGETS, Mutate, load, run_counted

from limiter.compiled import COMPILED

_CORPUS = Path(__file__).with_name("corpus")
_MAX_BYTES = 1 << 20
_MAX_RECORD_BYTES = 8192
_NAMES = [name for name in TARGETS if COMPILED is not None or not name.endswith("_compiled")]


@pytest.mark.parametrize("name", _NAMES)
def test_earlier_findings_stay_fixed(name: str) -> None:
    target = load(name)
    inputs = sorted((_CORPUS / target.corpus).iterdir())
    assert inputs
    for path in inputs:
        data = path.read_bytes()
        try:
            # Counting takes many times as long.
            (run_counted if path is inputs[0] else lambda _, data: target.run(data))(target, data)
        except BaseException as error:
            error.add_note(f"input {path}")
            raise


@pytest.mark.parametrize("name", _NAMES)
def test_seeds_unchanged_and_mutated(name: str, factor: int) -> None:
    target = load(name)
    seeds = list(target.seeds())
    for data in seeds:
        target.run(data)
    for seed in range(target.changed * factor):
        random = Random(seed)
        data = random.choice(seeds)
        for _ in range(random.choice((1, 1, 2, 5))):
            data = _changed(data, random) if target.mutated is None else _mutated(target.mutated, data, random)
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(f"seed {seed}: {data.hex()}")
            raise


def _mutated(mutate: Mutate, data: bytes, random: Random) -> bytes:
    return mutate(data, _MAX_RECORD_BYTES, lambda part, max_bytes: _changed(part, random)[:max_bytes], random)


def _changed(data: bytes, random: Random) -> bytes:
    """Change, drop, repeat, flip or move some bytes, as libFuzzer does."""
    out = bytearray(data)
    at = random.randrange(len(out) + 1)
    length = min(random.choice((1, 1, 2, 4, 8, 100)), len(out) - at)
    piece = out[at : at + length]
    match random.randrange(6):
        case 0:
            out[at : at + length] = random.randbytes(length)
        case 1:
            del out[at : at + length]
        case 2:
            out[at:at] = piece * random.randint(1, 3)
        case 3:
            out[at:at] = random.choice((b"\0", b'"', b"}", b"\xff", b"\\", b"{", b"\0\0\0\0", b"\x80", b"\x7f"))
        case 4 if length:
            out[at] ^= 1 << random.randrange(8)
        case _:
            other = random.randrange(len(out) + 1)
            out[other : other + length] = piece
    return bytes(out)


def test_the_corpus_is_small() -> None:
    assert {path.name for path in _CORPUS.iterdir()} <= {*(name.removesuffix("_compiled") for name in TARGETS), *NATIVE}
    assert sum(path.stat().st_size for path in _CORPUS.rglob("*") if path.is_file()) < _MAX_BYTES
