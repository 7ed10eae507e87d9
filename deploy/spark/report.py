"""`sluice report` for spark-submit."""  # noqa: INP001 - a script

import sys

from admin.cli import main

sys.exit(main(["report", *sys.argv[1:]]))
