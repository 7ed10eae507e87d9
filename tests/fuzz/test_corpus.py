"""What coverage-guided fuzzing has found worth keeping, tried again; and what it begins with."""

from pathlib import Path

import pytest
from fuzz_targets import NATIVE, TARGETS, load, run_counted

from limiter.compiled import COMPILED

_CORPUS = Path(__file__).with_name("corpus")
_MAX_BYTES = 1 << 20
_NAMES = [name for name in TARGETS if COMPILED is not None or not name.endswith("_compiled")]


@pytest.mark.parametrize("name", _NAMES)
def test_what_was_found_before(name: str) -> None:
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
def test_what_it_begins_with(name: str) -> None:
    target = load(name)
    for data in target.seeds():
        target.run(data)


def test_the_corpus_is_small() -> None:
    assert {path.name for path in _CORPUS.iterdir()} <= {*TARGETS, *NATIVE}
    assert sum(path.stat().st_size for path in _CORPUS.rglob("*") if path.is_file()) < _MAX_BYTES
