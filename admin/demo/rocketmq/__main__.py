"""The command line of the demo; ``make demo-rocketmq`` calls it."""

import sys

from admin.demo import rocketmq
from admin.demo.real.command_line import main
from admin.demo.rocketmq.broker import RocketMQ

if __name__ == "__main__":
    sys.exit(main(RocketMQ, rocketmq.__doc__))
