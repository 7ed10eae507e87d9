"""Writes ``admin/cli/protocol_words.py``, so that the command line need not load protocols."""

from pathlib import Path
from typing import Final

from admin.config.plugins import own_protocols
from admin.config.rule_fields import scope_kinds_of
from proxy.protocols import DEFAULT
from proxy.protocols.base import Protocol, kinds_of

FILE: Final = Path(__file__).parents[3] / "admin" / "cli" / "protocol_words.py"
_MODULE: Final = '''\
"""Words of the protocols for the command line, since loading the protocols takes time. Made by ``make reference``."""

from typing import Literal

DEFAULT = {default}
PROTOCOLS = {protocols}
Kind = Literal[{words}]
Scope = Literal[{scope_words}]
KINDS = {kinds}
SCOPES = {scopes}
MAIN_KIND = {main}
SPELLINGS = {spellings}
RATES = {rates}
'''


def module() -> str:
    kinds = kinds_of(own_protocols())
    scopes = [kind.name for kind in scope_kinds_of(own_protocols())]
    spelt = ", ".join(f"{kind.spelling} for a {kind.name}" for kind in kinds if kind.spelling)
    limited: dict[str, list[str]] = {}
    for protocol in own_protocols():
        limited.setdefault(_rates(protocol), []).append(protocol.name)
    limited.pop("", None)
    rates = "; ".join((*(f"{' and '.join(names)}: {rates}" for rates, names in limited.items()), "others: none"))
    return _MODULE.format(
        default=_text(DEFAULT),
        protocols=_text(", ".join(protocol.name for protocol in own_protocols())),
        words=", ".join(_text(kind.name) for kind in kinds),
        scope_words=", ".join(map(_text, scopes)),
        scopes=_text(", ".join(scopes)),
        kinds=_text(", ".join(kind.name for kind in kinds)),
        main=_text(kinds[0].name),
        spellings=_text(f" ({spelt})" if spelt else ""),
        rates=_text(rates),
    )


def _rates(protocol: Protocol) -> str:
    limited = (kind for kind in protocol.kinds if kind.rate_per_s is not None)
    return " and ".join(f"{kind.name}:*={kind.rate_per_s:g}/s" for kind in limited)


def _text(value: str) -> str:
    return f'"{value}"'
