"""Shared by the whole admin side: files on disk, errors, tables and numbers."""
