"""The client of the HTTP API: what ``sluice limits``, ``audit``, ``connections``, ``switch`` and ``top`` are made of.

It knows the API and nothing of the sidecar behind it.
"""
