"""The rejection log: refusals by the second and all traffic, as files of JSON lines.

Each second, ``recorder`` takes the counts of the data path, ``composer`` makes ``records`` from them, and ``files``
appends these. ``tail``, ``history`` and ``sluice report`` read the log.
"""
