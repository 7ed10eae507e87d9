"""Implements ``sluice demo``. Not for production."""
