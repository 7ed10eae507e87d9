"""The numbers of publishes on a confirm channel: those the client counts, and those the broker counts.

Both count from 1 since confirm.select. They differ once a publish was refused here, which the broker never saw, or
overtaken by another. What the broker then says of several publishes at once is said of each by itself, since such an
answer would cover what was refused, too; and only of those that nothing has been said of yet.

What the broker says of some publishes is withheld, as somebody else answers them.
"""

from collections.abc import Sequence


class Confirms:
    """The publishes of one channel.

    Attributes:
        numbered: the client's number of its latest publish.
    """

    __slots__ = ("_ahead", "_alike", "_first_open", "_numbers", "_sent", "_withheld", "numbered")

    def __init__(self) -> None:
        self.numbered = 0
        #: How many have gone to the broker.
        self._sent = 0
        #: Up to this number both count alike; None while they always did.
        self._alike: int | None = None
        #: The client's numbers by the broker's, beyond that; negative while withheld, 0 once answered by somebody else.
        self._numbers: dict[int, int] = {}
        #: How many of these are not positive.
        self._withheld = 0
        #: Of the broker's numbers: all before the first that is open are answered, and some ahead of it.
        self._first_open = 1
        self._ahead: set[int] = set()

    def number(self) -> int:
        """Return the client's number of the next publish."""
        self.numbered += 1
        return self.numbered

    def sent(self, number: int) -> None:
        """Note that the publish with that number of the client's goes to the broker now."""
        self._sent += 1
        if self._alike is None:
            if number == self._sent:
                return
            self._alike = self._sent - 1
        self._numbers[self._sent] = number

    def withhold(self) -> int:
        """Have the client hear nothing of the latest that has gone to the broker, but for a nack; return its number.

        That is the broker's number of it.
        """
        if self._alike is None:
            self._alike = self._sent - 1
            self._numbers[self._sent] = self._sent
        self._numbers[self._sent] *= -1
        self._withheld += 1
        return self._sent

    def settle(self, tag: int) -> None:
        """Note that a publish that is withheld is answered: the client hears nothing of the broker's answer."""
        if self._numbers.get(tag, 0) < 0:
            self._numbers[tag] = 0

    def release(self, tag: int) -> None:
        """Let the client hear what the broker says of a publish that is withheld."""
        number = self._numbers.get(tag, 0)
        if number < 0:
            self._numbers[tag] = -number
            self._withheld -= 1

    def outstanding(self) -> int:
        """Return how many have gone to the broker and are not answered, without those that are withheld."""
        return self._sent - self._first_open + 1 - len(self._ahead) - self._withheld

    def latest(self) -> int:
        """Return the broker's number of the latest that has gone to it."""
        return self._sent

    def is_open(self, tag: int) -> bool:
        """Say whether nothing was said yet of the publish with that number of the broker's."""
        return tag >= self._first_open and tag not in self._ahead

    def answered(self, tag: int, *, multiple: bool, refused: bool = False) -> Sequence[int] | None:
        """Take an ack or a nack of the broker's.

        Args:
            tag: the broker's number; with ``multiple`` 0 is all of them.
            multiple: it is for all up to that number.
            refused: it is a nack.

        Returns:
            The client's numbers that it is for, or None if it is right as it is.
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
        # Up to there all that the client has sent has gone to the broker.
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
        """Return the client's numbers of what the broker has answered, as far as it is to hear of it."""
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
