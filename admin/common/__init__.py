"""Code that the rest of the admin side shares: file handling, errors, tables and number formatting."""
