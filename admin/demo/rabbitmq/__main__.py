"""The command line of the demo; ``make demo-rabbitmq`` calls it."""

import sys

from admin.demo import rabbitmq
from admin.demo.rabbitmq.broker import RabbitMQ
from admin.demo.real.command_line import main

if __name__ == "__main__":
    sys.exit(main(RabbitMQ, rabbitmq.__doc__))
