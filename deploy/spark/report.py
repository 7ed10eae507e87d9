"""What spark-submit runs: `sluice report`, with the arguments that follow this file's name."""  # noqa: INP001 - a script

import sys

from admin.cli import main

sys.exit(main(["report", *sys.argv[1:]]))
