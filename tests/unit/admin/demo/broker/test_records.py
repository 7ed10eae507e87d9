"""Stored messages as they travel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_records import decode_record, decode_records

from admin.demo.broker.store import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    Message,
    encode_record,
    pack_host,
)

_I32 = st.integers(-(2**31), 2**31 - 1)
_I64 = st.integers(-(2**63), 2**63 - 1)
_HOSTS = st.sampled_from([pack_host("127.0.0.2", 10911), pack_host("::1", 40720)])
_MESSAGES = st.builds(
    Message,
    topic=st.text("abcXYZ%-_|09", min_size=1, max_size=127),
    queue_id=_I32,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    flag=_I32,
    sys_flag=_I32.map(lambda flag: flag & ~(BORN_HOST_V6 | STORE_HOST_V6)),
    born_ms=_I64,
    born_host=_HOSTS,
    reconsume_times=_I32,
)


@given(_MESSAGES, _I64, _I64, _I64, _HOSTS)
def test_record_reads_back_as_it_was_written(
    message: Message, queue_offset: int, physical_offset: int, store_ms: int, store_host: bytes
) -> None:
    encoded = encode_record(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_ms=store_ms,
        store_host=store_host,
    )
    record = decode_record(encoded)
    assert (record.queue_offset, record.physical_offset, record.store_ms, record.store_host) == (
        queue_offset,
        physical_offset,
        store_ms,
        store_host,
    )
    record.message.sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    assert record.message == message


def test_records_of_a_real_broker_are_written_again_byte_for_byte(pulled_bodies: list[bytes]) -> None:
    records = 0
    for body in pulled_bodies:
        again = b""
        for record in decode_records(body):
            records += 1
            again += encode_record(
                record.message,
                queue_offset=record.queue_offset,
                physical_offset=record.physical_offset,
                store_ms=record.store_ms,
                store_host=record.store_host,
            )
        assert again == body
    assert records > 100


def test_every_cut_of_a_record_is_refused() -> None:
    message = Message("orders", 3, b"body", b"TAGS\x01t\x02", 0, 0, 1, pack_host("10.1.2.3", 4))
    whole = encode_record(message, queue_offset=5, physical_offset=6, store_ms=7, store_host=pack_host("127.0.0.1", 8))
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="stored message"):
            decode_record(whole[:size])
        if size:
            with pytest.raises(ValueError, match="left"):
                list(decode_records(whole + whole[:size]))


def test_name_too_long_for_its_length_field_is_refused() -> None:
    for topic, properties in (("t" * 128, b""), ("t", b"p" * 32_768)):
        message = Message(topic, 0, b"", properties, 0, 0, 0, pack_host("127.0.0.1", 1))
        with pytest.raises(ValueError, match="limits are 127 and 32767"):
            encode_record(message, queue_offset=0, physical_offset=0, store_ms=0, store_host=message.born_host)


def test_host_name_counts_as_the_loopback_address() -> None:
    assert pack_host("broker.example", 10911) == bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    assert len(pack_host("fe80::1%eth0", 1)) == 20
