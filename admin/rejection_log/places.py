"""The old name of ``location``, for importers that have not moved yet."""

from admin.rejection_log.location import usual_logs

__all__ = ["usual_logs"]
