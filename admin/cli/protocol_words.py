"""Words of the protocols for the command line, since loading the protocols takes time. Made by ``make reference``."""

from typing import Literal

DEFAULT = "rocketmq"
PROTOCOLS = "rocketmq, amqp, amqp091, amqp10, rocketmq-grpc, rocketmq-namesrv"
Kind = Literal["topic", "retry_group", "transaction", "subscription", "queue", "exchange", "routing_key", "delivery"]
Scope = Literal["client", "producer_group", "certificate", "user", "vhost", "listener"]
KINDS = "topic, retry_group, transaction, subscription, queue, exchange, routing_key, delivery"
SCOPES = "client, producer_group, certificate, user, vhost, listener"
MAIN_KIND = "topic"
SPELLINGS = " (GROUP@TOPIC for a subscription, EXCHANGE/KEY for a routing_key)"
RATES = "rocketmq and rocketmq-grpc: topic:*=2000/s and retry_group:*=100/s; others: none"
