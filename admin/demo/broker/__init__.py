"""An embedded RocketMQ broker with its name server: the upstream of the demo and of the fast tests.

``serve_broker`` runs both in one trio process. Unchanged Java, C++/Python and Node clients send to it (single
messages, batches, oneway) and consume from it with a simple push consumer: routes, heartbeats, rebalancing, pulls with
long polling, offsets.

What it is not: a broker to keep messages in. For all that is not here there is a real one, by ``make demo-rocketmq``.

- Nothing is durable. Everything is in memory and bounded: the oldest messages are dropped, offsets end with
  the process. Topics and groups are bounded too, and refused beyond that.
- There is one broker: no replicas, no static topics, no ACL, no TLS, no PROXY protocol, no VIP port.
- A message is stored at once: no delay levels, no timers. One that begins a transaction is there without its end.
- What a consumer sends back is refused; no dead letters, no queue locks for consuming in order.
- Filters are ``*`` and tags joined by ``||``; no SQL.
- No POP consumers, no queries by key, id or time, no admin commands, no push of request-reply answers (324 and 325 are
  only stored). What it does not know it answers with code 3.
- A client is forgotten when its connection ends, not when its heartbeats stop.
"""

from admin.demo.broker.server import Loopback, serve_broker
from admin.demo.broker.store import LoopbackConfig

__all__ = ["Loopback", "LoopbackConfig", "serve_broker"]
