"""An embedded RocketMQ broker with its name server: the upstream of the demo and of the fast tests.

``serve_broker`` runs both in one trio process. Unchanged Java, C++/Python and Node clients send to it (single
messages, batches, oneway) and consume from it with a simple push consumer: routes, heartbeats, rebalancing, pulls with
long polling, offsets.

It is not a broker to keep messages in. For everything missing here, ``make demo-rocketmq`` runs a real one.

- Nothing is durable. Messages are in memory, and the oldest are dropped beyond 32 MiB. Offsets end with the process.
- It is a single broker on 127.0.0.1: no replicas, no static topics, no ACL, no TLS, no PROXY protocol, no VIP port.
- A message is stored at once: no delay levels, no timers, no transactions.
- Messages sent back by consumers are refused: no retries, no dead letters. There are no queue locks for ordered
  consuming.
- Filters are ``*`` and tags joined by ``||``; no SQL.
- No POP consumers, no queries by key, id or time, no admin commands, no push of request-reply answers (324 and 325 are
  only stored). Unknown requests are answered with code 3.
- A client is forgotten when its connection ends, not when its heartbeats stop.
"""

from admin.demo.broker.server import Loopback, serve_broker

__all__ = ["Loopback", "serve_broker"]
