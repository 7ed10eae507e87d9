"""Why connections end: the words of the metric and of the log, and what each means."""

from typing import Final

CLOSING_REASONS: Final = {
    "bad_answer": "the broker sent an answer that cannot be read (RocketMQ)",
    "bad_frame": "a peer sent what is no frame of the protocol, or one that is too long",
    "broker_closed": "the broker closed first",
    "broker_error": "the broker's socket failed, such as by a reset",
    "broker_unreachable": "neither the broker nor a backup of it accepted the connection",
    "client_closed": "the client closed first",
    "client_error": "the client's socket failed, such as by a reset",
    "closed_by_operator": "somebody closed it on the page, by a command or by the API",
    "connection_rate": "more than `new_connections_per_s` came",
    "drained": "Sluice was shutting down, and nothing of it was in flight",
    "frame_timeout": "a frame of the client was not complete within `frame_timeout_s`, and hardly any of it came",
    "grace_over": "Sluice was shutting down, and the grace period was over",
    "half_closed": "one peer had ended its stream, and the other did not end its own for a minute",
    "handed_over": "another process took over, with the client's spooled messages",
    "handshake_timeout": "the PROXY header, the TLS handshake or the first byte did not come within"
    " `handshake_timeout_s`",
    "idle_timeout": "nothing came from either side for `idle_timeout_s`",
    "internal_error": "a fault of Sluice's own, or of a plug-in's; the log has it",
    "no_descriptors": "there was no file descriptor left for it (`ulimit -n`)",
    "no_room": "the client did not read the name server's answers, and others needed the room (RocketMQ)",
    "other_protocol": "a peer speaks another protocol than the listener's, or another version",
    "proxy_header_invalid": "a client in `proxy_protocol_from` began with a PROXY header that cannot be read",
    "proxy_header_missing": "a client in `proxy_protocol_from` began without a PROXY header",
    "proxy_protocol": "a client that is not in `proxy_protocol_from` began with a PROXY header",
    "spool_damaged": "the disk has lost spooled messages, which the client must send again (AMQP 0.9.1)",
    "tls": "the TLS handshake failed, or the client began one with a listener that takes none",
    "too_many_connections": "`bounds.max_connections` were open",
    "too_many_connections_of_client": "the client had `max_connections_per_client` open",
    "too_many_links": "a peer attached more links than one session may have (AMQP 1.0)",
    "too_many_sessions": "a peer began more sessions than one connection may have (AMQP 1.0)",
    "transfer_limit_exceeded": "the client sent more on a link than it had credit for (AMQP 1.0)",
    "unparsable": "the client sent a header that cannot be read, so what it is for is not known (RocketMQ)",
    "unreadable_message": "the client sent a settled message that cannot be read (AMQP 1.0)",
}
"""In alphabetical order."""
