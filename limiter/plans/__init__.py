"""Finds the limiters that apply to a request, caches the result, and keeps live limiters in bounded memory."""
