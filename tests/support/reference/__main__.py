"""Writes the reference pages, and the protocol texts of the command line (``make reference``)."""

import os
import sys

from reference import FOLDER, PAGES, protocol_words

if protocol_words.FILE.read_text(encoding="utf-8") != (module := protocol_words.module()):
    protocol_words.FILE.write_text(module, encoding="utf-8")
    # Restart, because the pages need a command line with the new texts.
    os.execv(sys.executable, [sys.executable, "-m", "reference"])
FOLDER.mkdir(parents=True, exist_ok=True)
for name, page in PAGES.items():
    (FOLDER / name).write_text(page(), encoding="utf-8")
    print(FOLDER.name, name, sep="/")
