from proxy.common.log_rate import LogRate


def test_first_line_is_written() -> None:
    assert LogRate().take("a", 0.0) == 0


def test_lines_within_a_second_are_counted_in_the_next_one() -> None:
    rate = LogRate()
    rate.take("a", 10.0)
    assert [rate.take("a", 10.0 + tenths / 10) for tenths in range(1, 10)] == [None] * 9
    assert rate.take("a", 11.0) == 9
    assert rate.take("a", 12.5) == 0


def test_each_key_has_a_line_of_its_own() -> None:
    rate = LogRate()
    rate.take(("main", "reset"), 0.0)
    assert rate.take(("vip", "reset"), 0.0) == 0
    assert rate.take(("main", "reset"), 0.5) is None


def test_one_line_may_represent_many() -> None:
    rate = LogRate()
    assert rate.take("a", 0.0, 5) == 0
    assert rate.take("a", 0.5, 3) is None
    assert rate.take("a", 1.0) == 7
    assert rate.take("a", 2.0) == 0


def test_many_keys_share_the_lines_of_a_second() -> None:
    rate = LogRate(lines_per_s=2)
    assert [rate.take(key, 0.0) for key in "abcdef"] == [0] * 6
    written = [key for tenths in range(1, 91) for key in "abcdef" if rate.take(key, tenths / 10) is not None]
    assert sorted(written) == [key for key in "abcdef" for _ in range(3)]


def test_a_key_is_forgotten_an_hour_after_its_last_line() -> None:
    rate = LogRate(lines_per_s=1)
    for key in range(10):
        rate.take(key, 0.0)
    rate.take(0, 3601.0)
    assert rate.take(0, 3601.5) is None
    assert rate.take(0, 3602.0) == 1
