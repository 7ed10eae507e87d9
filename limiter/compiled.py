"""Loads the optional compiled extension, the package ``sluice_native`` (folder ``native``).

The extension parses frames, checks limits and counts requests. Without it, Python code does the same more slowly.
"""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Final

_MODULE: Final = "sluice_native"
_INTERFACE: Final = 22
_OTHER_VERSION: Final = (
    "the installed compiled extension (sluice-native) belongs to another version of Sluice and is not used; reinstall"
    " ./native"
)


def find(module_name: str = _MODULE) -> tuple[ModuleType | None, str]:
    """Return the compiled extension and an error message.

    The extension is None if it cannot be used. The message is empty unless an incompatible version is installed.
    """
    try:
        module = import_module(module_name)
    except ImportError:
        return None, ""
    return (module, "") if getattr(module, "INTERFACE", None) == _INTERFACE else (None, _OTHER_VERSION)


COMPILED, UNUSABLE = find()
VERSION: Final = "none" if COMPILED is None else version("sluice-native")
