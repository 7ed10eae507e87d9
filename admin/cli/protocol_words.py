"""What the command line says of Sluice's own protocols, which take their time to load; made by ``make reference``."""

from typing import Literal

DEFAULT = "rocketmq"
Kind = Literal["topic", "retry_group", "transaction", "subscription"]
KINDS = "topic, retry_group, transaction, subscription"
MAIN_KIND = "topic"
SPELLINGS = " (GROUP@TOPIC for a subscription)"
RATES = "topic:*=2000/s and retry_group:*=100/s"
