"""Logs refusals and all other traffic as JSON lines.

Each second, ``recorder`` fetches the data path's counts, ``composer`` turns them into ``records``, and ``files``
appends them to a file. ``tail``, ``history`` and ``sluice report`` read the log.
"""
