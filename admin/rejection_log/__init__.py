"""The rejection log: refusals per second and all traffic, in files of JSON lines.

Each second, ``recorder`` takes the counts of the data path, ``composer`` makes ``records`` from them, and ``files``
appends these. ``tail``, ``history`` and ``sluice report`` read the log.
"""
