"""The rejection log: refusals by the second and all traffic, as files of JSON lines to ship and analyse.

``records`` is the format. Each second ``recorder`` takes the counts of the data path, ``composer`` makes records of
them, and ``files`` appends them. ``tail``, ``history`` and ``sluice report`` read the log.
"""
