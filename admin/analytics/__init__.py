"""Evaluates rejection logs with Spark, and recommends limits. No sidecar has to be running.

Only ``sluice report`` imports this package, because pyspark is an optional dependency and slow to import.
"""
