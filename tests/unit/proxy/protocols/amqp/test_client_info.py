import pytest

from proxy.protocols.amqp.client_info import shown


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"orders\x1b", "orders?"),
        (b"a" * 64, "a" * 64),
        (b"a" * 65, "a" * 63 + "…"),
        ("😀".encode() * 64, "😀" * 64),
        ("😀".encode() * 65, "😀" * 63 + "…"),
    ],
)
def test_long_text_ends_in_an_ellipsis(said: bytes, text: str) -> None:
    assert shown(said) == text
