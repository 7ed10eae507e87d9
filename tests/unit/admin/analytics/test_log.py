from codecs import BOM_UTF8

from admin.analytics.log import _MAX_RECORD_BYTES, _split


def test_lines_are_put_together_of_pieces_and_only_the_begin_of_an_endless_one_is_kept() -> None:
    assert list(_split([BOM_UTF8 + b"a\nb", b"c", b"d\n\n", b"e"])) == [b"a", b"bcd", b"", b"e"]
    piece = b"x" * 1_000_000
    (long, after) = _split([*[piece] * 20, b"\nafter"])
    assert (len(long) < _MAX_RECORD_BYTES + len(piece), after) == (True, b"after")
