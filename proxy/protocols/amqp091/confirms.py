"""Confirm numbers of one channel: the client's and the broker's.

Both count from 1 since confirm.select. They differ once a publish was refused, which the broker never saw, or was
overtaken. From then on an answer of the broker to several publishes becomes one answer each, since a multiple one would
cover refused publishes, too. Answers to some publishes are withheld, since Sluice answers those itself.
"""

from collections.abc import Sequence

Numbers = tuple[int, int, int | None, int, set[int], dict[int, int]]
"""All that ``Confirms`` knows while nothing is withheld, for the compiled part and back."""


class Confirms:
    """The publishes of one channel; ``numbered`` is the client's latest number."""

    __slots__ = ("_ahead", "_alike", "_first_open", "_numbers", "_sent", "_withheld", "numbered")

    def __init__(self, numbers: Numbers | None = None) -> None:
        #: How many were forwarded. Up to which number both are equal; None while they always were. Of the broker's
        #: numbers, the first open one, and those answered beyond it. Beyond what is equal, the client's number by the
        #: broker's: negative if withheld, 0 if Sluice has answered it.
        self.numbered, self._sent, self._alike, self._first_open, self._ahead, self._numbers = (
            (0, 0, None, 1, set(), {}) if numbers is None else numbers
        )
        self._withheld = 0  # how many of ``_numbers`` are not positive

    def numbers(self) -> Numbers:
        return self.numbered, self._sent, self._alike, self._first_open, self._ahead, self._numbers

    @property
    def withholds(self) -> bool:
        return self._withheld > 0

    def number(self) -> int:
        self.numbered += 1
        return self.numbered

    def sent(self, number: int) -> None:
        """Take note that the publish with that client's number is forwarded."""
        self._sent += 1
        if self._alike is None:
            if number == self._sent:
                return
            self._alike = self._sent - 1
        self._numbers[self._sent] = number

    def withhold(self) -> int:
        """Withhold the broker's ack, not its nack, of the latest publish. Return the broker's number."""
        if self._alike is None:
            self._alike = self._sent - 1
            self._numbers[self._sent] = self._sent
        self._numbers[self._sent] *= -1
        self._withheld += 1
        return self._sent

    def settle(self, tag: int) -> None:
        """Drop the broker's answer to a withheld publish that Sluice has answered."""
        if self._numbers.get(tag, 0) < 0:
            self._numbers[tag] = 0

    def release(self, tag: int) -> None:
        """Forward the broker's answer to a publish that was withheld."""
        number = self._numbers.get(tag, 0)
        if number < 0:
            self._numbers[tag] = -number
            self._withheld -= 1

    def unanswered(self) -> int:
        """Return how many forwarded publishes the broker has not answered."""
        return self._sent - self._first_open + 1 - len(self._ahead)

    def outstanding(self) -> int:
        """Return how many forwarded publishes are unanswered, withheld ones excluded."""
        return self._sent - self._first_open + 1 - len(self._ahead) - self._withheld

    def latest(self) -> int:
        """Return the broker's number of the latest publish."""
        return self._sent

    def is_open(self, tag: int) -> bool:
        """Say whether the publish with that broker's number is unanswered."""
        return tag >= self._first_open and tag not in self._ahead

    def answered(self, tag: int, *, multiple: bool, refused: bool = False) -> Sequence[int] | None:
        """Take an ack or nack (``refused``) of the broker. With ``multiple``, tag 0 means all.

        Returns:
            The client's numbers that it is for, or None if it can be forwarded as it is.
        """
        alike = self._sent if self._alike is None else self._alike
        first, ahead = self._first_open, self._ahead
        if not multiple:
            if not first <= tag <= self._sent or tag in ahead:
                return []
            if tag == first:
                self._first_open = first + 1
            else:
                ahead.add(tag)
            self._step()
            return None if tag <= alike else self._heard([tag], refused=refused)
        upto = min(tag, self._sent) if tag else self._sent
        # All that the client has sent up to there was forwarded.
        as_it_is = 0 < tag <= alike
        answered = [] if as_it_is else [each for each in range(first, upto + 1) if each not in ahead]
        if ahead:
            ahead.difference_update(range(first, upto + 1))
        self._first_open = max(first, upto + 1)
        self._step()
        if as_it_is:
            return None
        return [each for each in answered if each <= alike] + self._heard(
            [each for each in answered if each > alike], refused=refused
        )

    def _heard(self, tags: Sequence[int], *, refused: bool) -> list[int]:
        """Return the client's numbers of answered tags, as far as the client is to hear of them."""
        numbers = [self._numbers.pop(tag) for tag in tags]
        if not self._withheld:
            return numbers
        self._withheld -= sum(number <= 0 for number in numbers)
        return [abs(number) for number in numbers if number > 0 or (refused and number)]

    def _step(self) -> None:
        ahead = self._ahead
        while ahead and self._first_open in ahead:
            ahead.remove(self._first_open)
            self._first_open += 1
