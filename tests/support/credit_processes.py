"""RabbitMQ's flow control by credit, one message at a time, to compare with the stages of ``proxy.flow.credit``."""

from collections import defaultdict, deque
from random import Random


class Process:
    """One process. Names are those of the algorithm: *from* and *to* are the directions of credit."""

    def __init__(self) -> None:
        self.credit_from: dict[int, int] = {}
        self.credit_to: dict[int, int] = {}
        self.blocked: list[int] = []
        self.deferred: list[tuple[int, int]] = []


class Processes:
    """All processes. A pid is an index of the list."""

    def __init__(self, specs: list[tuple[int, int]], random: Random) -> None:
        self._specs = specs
        self._random = random
        self._alive: dict[int, Process] = {pid: Process() for pid in range(len(specs))}
        # Grants in flight, by granter and receiver.
        self._mail: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)

    def send(self, pid: int, to: int) -> None:
        process = self._alive[pid]
        credit = process.credit_from.get(to, self._specs[to][0])
        if credit == 1:
            process.blocked.append(to)
            process.credit_from[to] = 0
        else:
            process.credit_from[to] = credit - 1

    def ack(self, pid: int, sender: int) -> None:
        """Handle one message of a sender."""
        process = self._alive[pid]
        more_after = self._specs[pid][1]
        until = process.credit_to.get(sender, more_after)
        if until > 1:
            process.credit_to[sender] = until - 1
            return
        process.credit_to[sender] = more_after
        if process.blocked:
            process.deferred.append((sender, more_after))
        else:
            self._mail[pid, sender].append(more_after)

    def stall(self, pid: int, follower: int) -> None:
        """A follower accepts no more, whatever its credit."""
        self._alive[pid].blocked.append(follower)

    def resume(self, pid: int, follower: int) -> None:
        self._unblock(pid, follower)

    def down(self, pid: int) -> None:
        """A process is gone. All others are notified."""
        del self._alive[pid]
        for pair in [pair for pair in self._mail if pid in pair]:
            del self._mail[pair]
        for process in self._alive.values():
            process.credit_from.pop(pid, None)
            process.credit_to.pop(pid, None)
        for other in self._alive:
            # Twice, if it is there twice.
            self._unblock(other, pid)
            self._unblock(other, pid)

    def deliver(self, most: int | None = None) -> None:
        """Deliver grants, and further ones caused by them: all of them, or at most this many."""
        while most is None or most > 0:
            pairs = [pair for pair, grants in self._mail.items() if grants]
            if not pairs:
                return
            granter, receiver = pair = self._random.choice(pairs)
            self._bump(receiver, granter, self._mail[pair].popleft())
            most = None if most is None else most - 1

    def balance(self, pid: int, to: int) -> int:
        """Return its credit. Negative: messages sent without credit."""
        return self._alive[pid].credit_from.get(to, self._specs[to][0])

    def deferred(self, pid: int, sender: int) -> int:
        """Return the grants owed to a sender."""
        return sum(quantity for to, quantity in self._alive[pid].deferred if to == sender)

    def blockers(self, pid: int) -> set[int]:
        return set(self._alive[pid].blocked)

    def _bump(self, pid: int, granter: int, quantity: int) -> None:
        process = self._alive[pid]
        before = process.credit_from.get(granter, 0)
        process.credit_from[granter] = before + quantity
        if before <= 0 < before + quantity:
            self._unblock(pid, granter)

    def _unblock(self, pid: int, by: int) -> None:
        process = self._alive[pid]
        if by in process.blocked:
            process.blocked.remove(by)
        if not process.blocked:
            deferred, process.deferred = process.deferred, []
            for to, quantity in deferred:
                if to in self._alive:
                    self._mail[pid, to].append(quantity)
