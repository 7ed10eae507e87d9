"""Options that multiple protocols share: TLS, and the choice of frame reader."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from limiter.compiled import COMPILED, UNUSABLE, VERSION
from proxy.protocols.base import Close

Tls = Literal["refuse", "pass"]
ScanName = Literal["auto", "compiled", "python"]

_TLS_HANDSHAKE: Final = 0x16
# The first byte of a version 1 header, and that of a version 2 header.
_PROXY_PROTOCOL: Final = b"P\r"


def relays_unread(first: int, tls: Tls) -> bool:
    """Return whether to relay a connection without parsing it, given the client's first byte.

    Raises:
        Close: The client began with a TLS handshake that the listener refuses, or with a PROXY protocol header.
    """
    if first == _TLS_HANDSHAKE:
        if tls == "refuse":
            raise Close(
                "tls",
                "the client began a TLS handshake, which this listener does not accept; disable TLS in the client, give"
                ' the listener a certificate and tls = "accept", or set tls = "pass" to relay the connection without'
                " limits",
            )
        return True
    if first in _PROXY_PROTOCOL:
        raise Close(
            "proxy_protocol",
            "the client began with a PROXY protocol header, which is not accepted from its address; if the client"
            " is a load balancer, add its address to the listener's proxy_protocol_from",
        )
    return False


def scans(name: ScanName) -> bool:
    return name != "python" and COMPILED is not None


def read_by(name: ScanName, unusable: str = UNUSABLE) -> str:
    """Describe the frame reader. ``unusable`` states why the compiled extension cannot be used."""
    if scans(name):
        return f"the compiled extension {VERSION}"
    return f"Python, frame by frame; {unusable}" if unusable and name == "auto" else "Python, frame by frame"


def _installed(name: ScanName) -> ScanName:
    if name == "compiled" and COMPILED is None:
        raise ValueError(
            'requires the compiled extension of the same version; install it with "pip install ./native", or use "auto"'
        )
    return name


Scan = Annotated[ScanName, Meta(extra={"check": _installed})]
