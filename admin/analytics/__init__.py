"""What becomes of the rejection log: tables, storms, culprits, recommended limits; by Spark.

Only ``sluice report`` imports it: pyspark and bokeh are an optional extra, and take their time. Nothing here touches a
running sidecar.
"""
