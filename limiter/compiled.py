"""Loads the optional compiled part, the package ``sluice_native`` (folder ``native``).

It parses frames, checks limits and counts requests. Without it, Python code does the same, more slowly. See
``sluice_native.pyi``.
"""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Final

_MODULE: Final = "sluice_native"
_INTERFACE: Final = 22
_OTHER_VERSION: Final = (
    "the installed compiled part (sluice-native) belongs to another version of Sluice and is not used; reinstall"
    " ./native"
)


def find(module_name: str = _MODULE) -> tuple[ModuleType | None, str]:
    """Return the compiled part, or None and a reason, which is empty if no compiled part is installed."""
    try:
        module = import_module(module_name)
    except ImportError:
        return None, ""
    return (module, "") if getattr(module, "INTERFACE", None) == _INTERFACE else (None, _OTHER_VERSION)


COMPILED, UNUSABLE = find()
VERSION: Final = "none" if COMPILED is None else version("sluice-native")
