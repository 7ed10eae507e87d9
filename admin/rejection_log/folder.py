"""The old name of ``files``, for importers that have not moved yet."""

from admin.rejection_log.files import file_name as finished_name

__all__ = ["finished_name"]
