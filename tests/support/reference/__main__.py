"""Writes the reference pages; ``make reference``."""

from reference import FOLDER, PAGES

FOLDER.mkdir(parents=True, exist_ok=True)
for name, page in PAGES.items():
    (FOLDER / name).write_text(page(), encoding="utf-8")
    print(FOLDER.name, name, sep="/")
