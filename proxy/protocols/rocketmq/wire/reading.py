"""What reading a request's header gives, shared by ``header`` and ``lenient``."""

from typing import Final, NamedTuple

import msgspec

from proxy.protocols.rocketmq.wire.codes import (
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    KIND_TRANSACTION,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAG_VALUES,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
    SUBSCRIPTION_FIELDS,
    SUBSCRIPTION_MARK,
    SYS_FLAG_INNER_BATCH,
    TRANSACTION_FIELDS,
    KeyFields,
)

# How a header was read (``Header.reading``).
STRICT: Final = 0
LENIENT: Final = 1
UNPARSED: Final = 2

# Replaces bytes that are not UTF-8. Decoders differ in how many they put, so a resource's name with one is not read;
# the broker refuses such names.
REPLACEMENT: Final = "\ufffd"


class HalfSend(NamedTuple):
    """The send of a half message: the group that may end it, and the topic where it is stored then."""

    group: str
    topic: str


class Header(msgspec.Struct, gc=False):
    """What deciding about a frame needs of its header."""

    # Of a limitable request, else empty: a response, another request, or one that the broker refuses for lack of a
    # topic or group.
    kind: str
    name: str  # bare name of the resource (no ``%RETRY%``), meaningful only where ``kind`` is not empty
    code: int  # request code, or response code where ``flag`` has FLAG_RESPONSE
    opaque: int
    flag: int
    producer_group: str = ""  # of a send, else empty; cut after 255 characters
    is_batch: bool = False  # the broker reads the body as a batch (see ``batch_body``)
    version: int = 0
    language: str = ""  # the client's language, or empty where the broker reads none
    reading: int = STRICT  # STRICT, LENIENT or UNPARSED; nothing else is known of an unparsed header
    sys_flag: int = 0
    half: HalfSend | None = None  # what the send of a half message begins; filled in later


UNPARSABLE: Final = Header("", "", 0, 0, 0, reading=UNPARSED)
"""An unreadable header. Shared: do not write to it."""


def subscription_name(consumer_group: str, topic: str) -> str:
    return f"{consumer_group}{SUBSCRIPTION_MARK}{topic}"


def read_sys_flag(value: str | int | None) -> int:
    """Return the number that the broker reads; SYS_FLAG_INNER_BATCH, the strictest, if it is not one."""
    try:
        return int(value or 0)
    except ValueError:
        return SYS_FLAG_INNER_BATCH


def charge(
    header: Header,
    fields: KeyFields,
    value: str,
    producer_group: str | None,
    *,
    batch: str | bool | None = None,
    sys_flag: str | int | None = None,
) -> Header:
    """Fill in what a limitable request is charged to, from its key fields; return ``header``.

    A send to ``%RETRY%<group>`` and a send-back (36) of that group are the same resource: clients use one when the
    other is refused. A batch is what Java's parseBoolean calls true: C++ writes ``"1"``, and the broker stores a single
    message.
    """
    if fields is SUBSCRIPTION_FIELDS:
        if producer_group is not None:
            header.kind, header.name = KIND_SUBSCRIPTION, subscription_name(producer_group, value)
        return header
    if fields is SEND_BACK_FIELDS:
        header.kind, header.name = KIND_RETRY_GROUP, value
    elif fields is TRANSACTION_FIELDS:
        header.kind, header.name = KIND_TRANSACTION, value
    elif value.startswith(RETRY_PREFIX):
        header.kind, header.name = KIND_RETRY_GROUP, value[len(RETRY_PREFIX) :]
    else:
        header.kind, header.name = KIND_TOPIC, value
    header.producer_group = (producer_group or "")[:MAX_NAME_CHARS]
    header.is_batch = batch != "false" and batch is not None and str(batch).lower() == "true"
    if sys_flag not in PLAIN_SYS_FLAG_VALUES:
        header.sys_flag = read_sys_flag(sys_flag)
    return header
