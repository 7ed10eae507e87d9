"""Evaluates rejection logs with Spark, and recommends limits. No sidecar has to be running."""
