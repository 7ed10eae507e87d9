"""The client of the HTTP API: what ``sluice limits``, ``audit``, ``connections``, ``switch`` and ``top`` are made of.

It knows the API and nothing of the sidecar behind it. Here is what it can fail with; each ends the process with an exit
code of its own.
"""

from admin.common.errors import OperatorError, SettingsError


class NoAnswerError(OperatorError):
    """Nobody answers at the admin address, or not Sluice, or it cannot do this now."""


class RefusedError(SettingsError):
    """The API does not take what was asked for."""


class StaleError(OperatorError):
    """Somebody else changed it first; nothing was changed."""

    exit_code = 3


class NotPermittedError(OperatorError):
    """The token is missing or wrong, or may only read."""

    exit_code = 4


class NotFoundError(OperatorError):
    """There is no such limit, edit, change or connection."""

    exit_code = 5
