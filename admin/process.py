"""What the sidecar asks of its own process: enough file descriptors."""

import resource

#: Listeners, the event loop, logs, the admin address and a reserve.
_OTHER_DESCRIPTORS = 256


def raise_descriptor_limit(max_connections: int) -> str | None:
    """Allow as many open files as the connections need: one for the client and one for the broker of each.

    Args:
        max_connections: clients that may be connected at once.

    Returns:
        A warning when the system does not allow that many, otherwise None.
    """
    needed = 2 * max_connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= needed:
        return None
    room = max(0, allowed - _OTHER_DESCRIPTORS) // 2
    return (
        f"bounds.max_connections {max_connections}: the system allows {hard} open files, room for {room} connections; "
        "raise its limit (LimitNOFILE, ulimit -n) or lower the bound"
    )
