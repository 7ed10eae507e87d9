"""Shared code of the admin side: files on disk, errors, tables and numbers."""
