"""Finds the limiters that apply to a request, and keeps live limiters in bounded memory."""
