"""What can be wrong with the wire, and whose fault it was; in the manner of h11.

Only the codec raises these. Reading a request's header for a decision never raises: see ``header``.
"""


class ProtocolError(Exception):
    """The bytes are not RocketMQ's remoting protocol, or would not be; never raised itself.

    Attributes:
        reason: one word for a metric, e.g. ``bad_frame``.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow; a broker closes the connection on it."""


class LocalProtocolError(ProtocolError):
    """Our own side asked for a command that cannot be written, e.g. a code too large for a binary header."""
