"""Finds the limiters of a request, caches the result, and keeps live limiters in bounded memory."""
