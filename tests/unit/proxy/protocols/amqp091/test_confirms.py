from random import Random

import pytest

from proxy.protocols.amqp091.confirms import Confirms


@pytest.mark.parametrize("seed", range(15))
def test_each_number_is_answered_once(seed: int) -> None:
    random = Random(seed)
    confirms = Confirms()
    waiting: list[int] = []  # client's numbers that wait in Sluice
    sent: list[int] = []  # client's numbers by the broker's
    refused: set[int] = set()
    unanswered: set[int] = set()  # broker's numbers
    open_numbers: set[int] = set()  # client's numbers that were forwarded
    for _ in range(300):
        dice = random.random()
        if dice < 0.5:
            waiting.append(confirms.number())
            if random.random() < 0.1:
                refused.add(waiting.pop())
        if waiting and random.random() < 0.9:
            number = waiting.pop(0 if random.random() < 0.9 else -1)
            confirms.sent(number)
            sent.append(number)
            unanswered.add(len(sent))
            open_numbers.add(number)
        if dice > 0.7 and unanswered:
            tag, multiple = random.choice(sorted(unanswered)), random.random() < 0.5
            covered = {each for each in unanswered if each == tag or (multiple and each < tag)}
            unanswered -= covered
            expected = {sent[each - 1] for each in covered}
            answered = confirms.answered(tag, multiple=multiple)
            if answered is None:
                # The client interprets the confirm literally.
                mentioned = {each for each in range(1, tag + 1) if multiple or each == tag}
                assert not mentioned & (refused | set(waiting))
                assert mentioned & open_numbers == expected
            else:
                assert sorted(answered) == sorted(expected)
            open_numbers -= expected
        assert confirms.outstanding() == len(unanswered)


def test_an_ack_of_a_withheld_message_is_ignored_unlike_a_nack() -> None:
    confirms = Confirms()
    for number in range(1, 8):
        confirms.sent(confirms.number())
        if number in {2, 3, 5, 6, 7}:
            assert confirms.withhold() == number
    assert confirms.outstanding() == 2
    assert confirms.answered(1, multiple=False) is None
    assert confirms.answered(4, multiple=True) == [4]
    assert confirms.outstanding() == 0
    assert confirms.answered(5, multiple=False, refused=True) == [5]
    confirms.settle(6)
    assert confirms.answered(6, multiple=False, refused=True) == []
    confirms.release(7)
    assert confirms.outstanding() == 1
    assert confirms.answered(0, multiple=True) == [7]
    assert confirms.outstanding() == 0
    confirms.settle(7)
    confirms.release(7)
    assert confirms.outstanding() == 0
