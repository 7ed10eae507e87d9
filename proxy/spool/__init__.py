"""The spool: what is held over the limit, first in, first out for each queue, in memory and on disk."""
