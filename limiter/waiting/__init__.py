"""Requests that wait for permits: their order, and their maximum wait."""
