"""The live statistics: what every limit and every connection does now, ready to be shown, searched and sorted."""

from admin.stats.connections import ConnectionQuery
from admin.stats.live_stats import LiveStats
from admin.stats.rows import Query

__all__ = ["ConnectionQuery", "LiveStats", "Query"]
