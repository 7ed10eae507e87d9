"""Version numbers and their words: those of MQVersion.Version in rocketmq-common 5.5.0."""

import pytest

from proxy.protocols.rocketmq.about import version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (8, "V3_0_0_BETA6"),
        (15, "V3_0_0_FINAL"),
        (16, "V3_0_1_SNAPSHOT"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (63, "V3_1_8"),
        (85, "V3_2_9"),
        (86, "V3_3_1_SNAPSHOT"),
        (104, "V3_4_1_SNAPSHOT"),
        (211, "V3_9_9"),
        (212, "V4_0_0_SNAPSHOT"),
        (317, "V4_5_2"),
        (411, "V4_9_9"),
        (412, "V5_0_0_SNAPSHOT"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
    ],
)
def test_number_has_the_word_of_the_enumeration(number: int, name: str) -> None:
    assert version_name(number) == name


@pytest.mark.parametrize("number", [-(2**31), -1, 612, 2**31 - 1])
def test_number_without_a_word_stays_a_number(number: int) -> None:
    assert version_name(number) == str(number)


def test_no_two_numbers_have_the_same_word() -> None:
    assert len({version_name(number) for number in range(700)}) == 700
