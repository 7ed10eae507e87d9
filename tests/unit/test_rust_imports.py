import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_NATIVE = Path(__file__).resolve().parents[2] / "native"
_USED = re.compile(r"\b(crate|super)::(\w+|\{[^;]*\})")


def _used(module: tuple[str, ...], text: str) -> set[tuple[str, ...]]:
    """The modules that one names as ``crate::…`` or ``super::…``, items of the crate's root among them."""
    found = set()
    for root, rest in _USED.findall(text.split("#[cfg(test)]", maxsplit=1)[0]):
        for name in re.findall(r"(?:^|[{,])\s*(\w+)", rest):
            found.add((*(module[:-1] if root == "super" else ()), name))
    return found


@pytest.mark.parametrize("source", ["core/src", "src"])
def test_modules_of_a_crate_have_no_circle(source: str) -> None:
    files = {
        path.relative_to(_NATIVE / source).with_suffix("").parts: path for path in _NATIVE.glob(f"{source}/**/*.rs")
    }
    modules = {name: path.read_text() for name, path in files.items() if name[-1] not in {"lib", "mod", "tests"}}
    used = {name: _used(name, text) & modules.keys() for name, text in modules.items()}
    assert len(used) > 10
    assert any(used.values())

    try:
        TopologicalSorter(used).prepare()
    except CycleError as circle:
        pytest.fail(" → ".join("::".join(name) for name in reversed(circle.args[1])))
