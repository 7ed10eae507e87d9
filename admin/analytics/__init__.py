"""What becomes of the rejection log: tables, storms, culprits, recommended limits; by Spark.

Only ``sluice report`` imports it: pyspark is an optional extra, and takes its time. Nothing here touches a
running sidecar.
"""
