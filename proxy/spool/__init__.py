"""The spool: FIFO queues of messages held over the limit, in memory and on disk."""
