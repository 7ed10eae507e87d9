"""What all of the admin side uses: files on disk, errors for people, tables and numbers."""
