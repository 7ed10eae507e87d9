"""Translates the sequence numbers in the broker's confirms to the client's numbers, for one channel.

Both peers count publishes from 1. The counts differ once Sluice has refused a publish, which the broker never sees, or
has forwarded publishes in a different order. From then on, confirms with the flag ``multiple`` are split, because they
would also cover refused publishes. When Sluice confirms a publish itself, the broker's confirm is withheld.
"""

from collections.abc import Sequence

Numbers = tuple[int, int, int | None, int, set[int], dict[int, int]]
"""The state of a ``Confirms`` that withholds nothing, as exchanged with the compiled extension."""


class Confirms:
    __slots__ = ("_ahead", "_alike", "_first_open", "_numbers", "_sent", "_withheld", "numbered")

    def __init__(self, numbers: Numbers | None = None) -> None:
        # numbered: the client's last number
        # _sent: the broker's last number
        # _alike: the last number that is the same for both peers, or None if all are
        # _first_open: the broker's first unanswered number
        # _ahead: the broker's answered numbers above _first_open
        # _numbers: the client's numbers by the broker's, above _alike. Negative if withheld, 0 if Sluice has answered
        self.numbered, self._sent, self._alike, self._first_open, self._ahead, self._numbers = (
            (0, 0, None, 1, set(), {}) if numbers is None else numbers
        )
        self._withheld = 0

    def numbers(self) -> Numbers:
        return self.numbered, self._sent, self._alike, self._first_open, self._ahead, self._numbers

    @property
    def withholds(self) -> bool:
        return self._withheld > 0

    def number(self) -> int:
        self.numbered += 1
        return self.numbered

    def sent(self, number: int) -> None:
        self._sent += 1
        if self._alike is None:
            if number == self._sent:
                return
            self._alike = self._sent - 1
        self._numbers[self._sent] = number

    def withhold(self) -> int:
        """Withhold the broker's ack, but not its nack, for the latest publish. Return the broker's number for it."""
        if self._alike is None:
            self._alike = self._sent - 1
            self._numbers[self._sent] = self._sent
        self._numbers[self._sent] *= -1
        self._withheld += 1
        return self._sent

    def settle(self, tag: int) -> None:
        """Record that Sluice has answered a publish. The broker's confirm for it will be dropped."""
        if self._numbers.get(tag, 0) < 0:
            self._numbers[tag] = 0

    def release(self, tag: int) -> None:
        number = self._numbers.get(tag, 0)
        if number < 0:
            self._numbers[tag] = -number
            self._withheld -= 1

    def unanswered(self) -> int:
        return self._sent - self._first_open + 1 - len(self._ahead)

    def outstanding(self) -> int:
        return self._sent - self._first_open + 1 - len(self._ahead) - self._withheld

    def latest(self) -> int:
        return self._sent

    def is_open(self, tag: int) -> bool:
        return tag >= self._first_open and tag not in self._ahead

    def answered(self, tag: int, *, multiple: bool, refused: bool = False) -> Sequence[int] | None:
        """Handle an ack from the broker, or a nack if ``refused``. If ``multiple`` is set, tag 0 covers all publishes.

        Returns:
            The client's numbers of the publishes to answer, or None if the frame can be forwarded unchanged.
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
        up_to = min(tag, self._sent) if tag else self._sent
        as_it_is = 0 < tag <= alike
        answered = [] if as_it_is else [each for each in range(first, up_to + 1) if each not in ahead]
        if ahead:
            ahead.difference_update(range(first, up_to + 1))
        self._first_open = max(first, up_to + 1)
        self._step()
        if as_it_is:
            return None
        return [each for each in answered if each <= alike] + self._heard(
            [each for each in answered if each > alike], refused=refused
        )

    def _heard(self, tags: Sequence[int], *, refused: bool) -> list[int]:
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
