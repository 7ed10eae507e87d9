"""Evaluates the rejection log with Spark: tables, storms, culprits, recommended limits.

Only ``sluice report`` imports it, because pyspark is an optional extra and slow to import. Needs no running sidecar.
"""
