"""The rejection log: what was refused, by whom and how much, as files of JSON lines that are shipped and analysed.

``records`` is the format.
"""
