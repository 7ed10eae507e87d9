"""The spool: FIFO queues, in memory and on disk, of messages held over a limit."""
