"""Why connections end: the words of the metric and of the log, and what each means."""

from typing import Final

CLOSING_REASONS: Final = {
    "bad_answer": "the broker sent an answer that cannot be read (RocketMQ)",
    "bad_frame": "a peer sent an invalid frame, or one that is too long",
    "broker_closed": "the broker closed first",
    "broker_error": "the broker's connection failed, for example by a reset",
    "broker_unreachable": "neither the broker nor a backup accepted the connection",
    "client_closed": "the client closed first",
    "client_error": "the client's connection failed, for example by a reset",
    "closed_by_operator": "an operator closed it on the page, by a command or through the API",
    "connection_rate": "clients exceeded `new_connections_per_s`",
    "drained": "Sluice was shutting down, and no request of the connection was in flight",
    "frame_timeout": "a frame of the client was incomplete after `frame_timeout_s`, and hardly any data arrived",
    "grace_over": "Sluice was shutting down, and the grace period was over",
    "half_closed": "one peer closed its stream, and the other did not follow within a minute",
    "handed_over": "another process took over, with the client's spooled messages",
    "handshake_timeout": "the PROXY header, the TLS handshake or the first byte did not arrive within"
    " `handshake_timeout_s`",
    "idle_timeout": "neither side sent anything for `idle_timeout_s`",
    "internal_error": "an error in Sluice or a plug-in; see the log",
    "no_descriptors": "no file descriptor was left for it (`ulimit -n`)",
    "no_room": "the client did not read the name server's answers, and other connections needed the memory (RocketMQ)",
    "other_protocol": "a peer speaks a different protocol or version than the listener",
    "proxy_header_invalid": "a client in `proxy_protocol_from` sent an invalid PROXY header",
    "proxy_header_missing": "a client in `proxy_protocol_from` sent no PROXY header",
    "proxy_protocol": "a client that is not in `proxy_protocol_from` sent a PROXY header",
    "spool_damaged": "spooled messages were lost on disk, and the client must send them again (AMQP 0.9.1)",
    "tls": "the TLS handshake failed, or the client tried TLS on a listener that does not accept it",
    "too_many_connections": "`bounds.max_connections` connections were open",
    "too_many_connections_of_client": "the client had `max_connections_per_client` connections open",
    "too_many_links": "a peer attached more links than one session may have (AMQP 1.0)",
    "too_many_sessions": "a peer began more sessions than one connection may have (AMQP 1.0)",
    "transfer_limit_exceeded": "the client exceeded its credit on a link (AMQP 1.0)",
    "unparsable": "the client sent a header that cannot be read, so its purpose is unknown (RocketMQ)",
    "unreadable_message": "the client sent a settled message that cannot be read (AMQP 1.0)",
}
"""In alphabetical order."""
