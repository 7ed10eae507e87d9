"""The rejection log: what was refused, by whom and how much, as files of JSON lines that are shipped and analysed.

``records`` is the format. Each second ``recorder`` takes what the data path has counted; ``ledger`` makes records of it
with ``aggregate`` and ``composing``; ``files`` writes them into a ``folder``, and what a crash would cost into a
write-ahead file beside them (``write_ahead``), which ``recovery`` reads at the next start. ``tail`` shows a log to
people.
"""
