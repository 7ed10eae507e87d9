"""Code shared by the whole admin side: files on disk, errors for people, tables and numbers."""
