"""An embedded RocketMQ broker with its name server: the upstream of the demo and of the fast tests.

``serve_broker`` runs both in one trio process. Unchanged Java, C++/Python and Node clients send to it (single
messages, batches, oneway, after a delay level) and consume from it with a simple push consumer: routes,
heartbeats, rebalancing, pulls with long polling, offsets, queue locks, send-backs with delayed redelivery,
dead letters after too many of them.

What it is not: a broker to keep messages in.

- Nothing is durable. Everything is in memory and bounded: the oldest messages are dropped, offsets end with
  the process. Delayed messages, topics and groups are bounded too, and refused beyond that.
- There is one broker: no replicas, no static topics, no ACL, no TLS, no PROXY protocol, no VIP port.
- Transactions end as their producer says, but nobody is asked about one that never ends.
- Filters are ``*`` and tags joined by ``||``; no SQL.
- No POP consumers, no timer messages beyond the delay levels, no queries by key, no admin commands, no push of
  request-reply answers (324 and 325 are only stored). What it does not know it answers with code 3.
- A client is forgotten when its connection ends, not when its heartbeats stop.
"""

from proxy.loopback.broker import Broker
from proxy.loopback.channel import Role
from proxy.loopback.config import LoopbackConfig
from proxy.loopback.server import Loopback, serve_broker

__all__ = ["Broker", "Loopback", "LoopbackConfig", "Role", "serve_broker"]
