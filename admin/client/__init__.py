"""The client of the HTTP API, behind ``sluice limits``, ``audit``, ``connections``, ``switch`` and ``top``.

Its errors each have an exit code of their own.
"""

from admin.common.errors import OperatorError, SettingsError


class NoAnswerError(OperatorError):
    """No answer from the admin address, not a Sluice, or not possible now."""


class RefusedError(SettingsError):
    """The API refuses the request as invalid."""


class StaleError(OperatorError):
    """Somebody else changed it first; nothing was changed."""

    exit_code = 3


class NotPermittedError(OperatorError):
    """The token is missing or wrong, or may only read."""

    exit_code = 4


class NotFoundError(OperatorError):
    """There is no such limit, edit, change or connection."""

    exit_code = 5
