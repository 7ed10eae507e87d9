"""The spool keeps messages that exceed a limit, in FIFO queues in memory and on disk."""
