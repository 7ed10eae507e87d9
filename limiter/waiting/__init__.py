"""Requests that wait for permits: their order and maximum wait."""
