"""Coverage-guided fuzzing: runs targets for a while each, and reports the results."""

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = ROOT / "tests/fuzz/corpus"
WORK: Final = ROOT / ".fuzz"
_RUST: Final = ROOT / "native/fuzz"
# As of `cargo fuzz build --sanitizer none`.
_INSTRUMENTED: Final = (
    "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cllvm-args=-sanitizer-coverage-level=4"
    " -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
    " -Cllvm-args=-sanitizer-coverage-trace-compares"
)
_MAX_INPUT_BYTES: Final = 8192
# In the tree: the maximum number of a target's inputs, their bytes in total, and each.
_KEPT_INPUTS, _KEPT_BYTES, _KEPT_INPUT_BYTES = 80, 48 * 1024, 2048
# A slower input is a finding, on a busy machine too.
_TIMEOUT_S: Final = 60
_STATUS: Final = re.compile(r"#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)/")
# One run in this many is counted step by step.
_COUNTED: Final = 1000

sys.path[:0] = [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "tests/integration")]

from fuzz_targets import NATIVE, TARGETS  # noqa: E402 - found there


class Ran(NamedTuple):
    runs: int
    edges: int
    features: int
    inputs: int
    findings: Sequence[Path]


def main() -> int:
    """Run the command line. Return 1 if something was found."""
    parser = argparse.ArgumentParser(description="Coverage-guided fuzzing with libFuzzer.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join([*TARGETS, *NATIVE])}")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--minimise", action="store_true", help="put what is worth having into tests/fuzz/corpus")
    parser.add_argument("--try", dest="again", type=Path, metavar="FILE", help="try one input again")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.targets or _all_here()
    if unknown := set(names) - {*TARGETS, *NATIVE}:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if given.worker is not None:
        return _fuzz_python(names[0], given.worker)
    if set(names) & set(NATIVE):
        _build_native()
    if given.again is not None:
        return subprocess.run(_command(names[0], str(given.again)), check=False).returncode
    if given.minimise:
        for name in names:
            _minimise(name)
        return 0
    found = {name: _run(name, given.seconds) for name in names}
    print(f"\n{'target':<20}{'runs':>12}{'edges':>8}{'features':>10}{'inputs':>8}  findings")
    for name, ran in found.items():
        findings = ", ".join(str(path.relative_to(ROOT)) for path in ran.findings) or "none"
        print(f"{name:<20}{ran.runs:>12}{ran.edges:>8}{ran.features:>10}{ran.inputs:>8}  {findings}")
    return int(any(ran.findings for ran in found.values()))


def _all_here() -> list[str]:
    """Return all targets whose requirements are installed."""
    found = [*TARGETS, *NATIVE]
    if importlib.util.find_spec("sluice_native") is None:
        print("without the compiled extension: make native installs it", file=sys.stderr)
        found = [name for name in found if not name.endswith("_compiled")]
    if shutil.which("cargo") is None:
        print("without the targets of the Rust core: they need cargo 1.85 and g++", file=sys.stderr)
        found = [name for name in found if name not in NATIVE]
    return found


# --- Running --------------------------------------------------------------------------------------


def _run(name: str, seconds: int) -> Ran:
    """Run one target for a time, or until a finding."""
    learnt, findings = WORK / name / "corpus", WORK / name / "findings"
    for folder in (learnt, findings):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    _write_seeds(name)
    print(f"{name}: {seconds} s, log in {(WORK / name / 'log').relative_to(ROOT)}", flush=True)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={_MAX_INPUT_BYTES}",
        f"-timeout={_TIMEOUT_S}",
        f"-report_slow_units={_TIMEOUT_S}",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={findings}/",
    ]
    folders = [str(learnt), *(str(folder) for folder in (_corpus_of(name), WORK / name / "seeds") if folder.is_dir())]
    with (WORK / name / "log").open("w", encoding="utf-8", errors="replace") as log:
        ended = subprocess.run(_command(name, *flags, *folders), stdout=log, stderr=log, check=False)
    text = (WORK / name / "log").read_text(encoding="utf-8", errors="replace")
    found = sorted(set(findings.iterdir()) - before)
    if ended.returncode and not found:
        print("\n".join(text.splitlines()[-30:]), file=sys.stderr)
        raise SystemExit(f"{name}: ended with {ended.returncode}, and without an input")
    if found:
        print(f"{name}: {text[text.find(' === Uncaught') :][:3000] if ' === Uncaught' in text else text[-2000:]}")
        print(f"again: .venv/bin/python tests/fuzz/guided.py {name} --try {found[0].relative_to(ROOT)}", flush=True)
    status = _STATUS.findall(text)
    runs, edges, features, inputs = map(int, status[-1]) if status else (0, 0, 0, 0)
    return Ran(runs, edges, features, inputs, found)


def _command(name: str, *arguments: str) -> list[str]:
    if name in NATIVE:
        return [str(_RUST / "target" / _host() / "release" / name), *arguments]
    return [sys.executable, __file__, name, "--worker", *arguments]


def _write_seeds(name: str) -> None:
    """Write a target's seeds, up to the length of its inputs."""
    from fuzz_targets import load, native  # noqa: PLC0415 - not in the process that fuzzes, where it is instrumented

    folder = WORK / name / "seeds"
    folder.mkdir(parents=True, exist_ok=True)
    for data in native.SEEDS[name]() if name in NATIVE else load(name).seeds():
        if len(data) <= _MAX_INPUT_BYTES:
            (folder / _name_of(data)).write_bytes(data)


def _corpus_of(name: str) -> Path:
    """Return the inputs in the tree. Comparisons with the compiled extension use those of the other target."""
    return CORPUS / name.removesuffix("_compiled")


def _name_of(data: bytes) -> str:
    return _sha1(data)[:16]


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _fuzz_python(name: str, arguments: Sequence[str]) -> int:
    """Run a target with Atheris, in this process."""
    try:
        atheris = import_module("atheris")  # without types
    except ImportError:
        raise SystemExit("Atheris is not installed: make fuzz-long does it, or pip install -e '.[fuzz]'") from None
    with atheris.instrument_imports(include=["admin", "proxy", "limiter"]):
        from fuzz_targets import load, run_counted  # noqa: PLC0415 - now, so that what they import is instrumented

        target = load(name)
    tried = 0

    def run(data: bytes) -> None:
        nonlocal tried
        tried += 1
        try:
            (run_counted if tried % _COUNTED == 0 else _plain)(target, data)
        except BaseException:
            # libFuzzer writes it, too, unless the process ends before.
            findings = WORK / name / "findings"
            findings.mkdir(parents=True, exist_ok=True)
            (findings / f"crash-{_sha1(data)}").write_bytes(data)
            # Atheris does not print the members of a group of exceptions.
            traceback.print_exc()
            raise

    def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
        assert target.mutated is not None
        return target.mutated(data, max_bytes, atheris.Mutate, Random(seed))

    more: dict[str, Any] = {} if target.mutated is None else {"custom_mutator": mutate}
    # A merge starts the same command again, with a shell.
    itself = " ".join(_command(name))
    atheris.Setup([itself, *arguments], run, **more)
    atheris.Fuzz()
    return 0


def _plain(target: Any, data: bytes) -> None:
    target.run(data)


# --- The core -------------------------------------------------------------------------------------


def _host() -> str:
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return re.search(r"host: (\S+)", said)[1]  # type: ignore[index] # rustc says it


def _build_native() -> None:
    """Build the core's instrumented targets with the installed Rust."""
    built = subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--features", "libfuzzer", "--target", _host()],
        cwd=_RUST,
        env={**os.environ, "RUSTFLAGS": _INSTRUMENTED},
        check=False,
    )
    if built.returncode:
        raise SystemExit("the targets of native/fuzz cannot be built: they need cargo 1.85 and g++")


# --- Kept inputs ---------------------------------------------------------------------------------


def _minimise(name: str) -> None:
    """Write the tree's inputs again: few and short ones that reach most of the coverage."""
    merged, tree = WORK / name / "merged", _corpus_of(name)
    if tree.name != name:
        print(f"{name}: begins with what {tree.name} has")
        return
    for old in merged.glob("*"):
        old.unlink()
    merged.mkdir(parents=True, exist_ok=True)
    _write_seeds(name)
    folders = [folder for folder in (tree, WORK / name / "corpus", WORK / name / "seeds") if folder.is_dir()]
    flags = [f"-max_len={_KEPT_INPUT_BYTES}", "-set_cover_merge=1", f"-timeout={_TIMEOUT_S}"]
    command = _command(name, *flags, str(merged), *map(str, folders))
    began = time.monotonic()
    with (WORK / name / "merge.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    kept, size = [], 0
    # The merge takes the most productive first.
    for path in sorted(merged.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:_KEPT_INPUTS]:
        data = path.read_bytes()
        if size + len(data) > _KEPT_BYTES:
            break
        kept.append(data)
        size += len(data)
    tree.mkdir(parents=True, exist_ok=True)
    for path in tree.iterdir():
        path.unlink()
    for data in kept:
        (tree / _name_of(data)).write_bytes(data)
    print(f"{name}: {len(kept)} inputs of {size} bytes, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    raise SystemExit(main())
