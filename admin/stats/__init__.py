"""Live statistics of all limits and connections, for the admin page and the API."""

from admin.stats.connections import ConnectionQuery
from admin.stats.live_stats import LiveStats
from admin.stats.rows import Query

__all__ = ["ConnectionQuery", "LiveStats", "Query"]
