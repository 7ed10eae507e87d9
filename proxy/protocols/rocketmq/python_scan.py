"""The scan in Python: for machines without the compiled one, and what that one is held to.

What it does is described in ``scanning``. It reads a header as ``header.classify`` does, and leaves to that one
whatever is no everyday send.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq.forbidden import is_internal
from proxy.protocols.rocketmq.scanning import MAX_KEYS, MAX_RUNS, Key, Run
from proxy.protocols.rocketmq.wire.binary import read_java_send
from proxy.protocols.rocketmq.wire.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HEADER_BINARY,
    HEADER_JSON,
    KIND_RETRY_GROUP,
    KIND_TOPIC,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAG_VALUES,
    PREFIX_BYTES,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
    SEND_V1_FIELDS,
    SEND_V2_FIELDS,
    SENDS,
)
from proxy.protocols.rocketmq.wire.frame import HEADER_LENGTH, MAX_HEADER_BYTES, prefix_at
from proxy.protocols.rocketmq.wire.header import decode_json

_answer_prefix: Final = Struct(">ii").pack
_fields_of: Final = SENDS.get
_DOLLAR: Final = ord("$")


class Opaques:
    """A set of numbers with a bound.

    Args:
        most: how many it holds; what comes beyond is not put in.

    Attributes:
        ambiguous: a number was put in that was there already, or for which there was no room.
    """

    __slots__ = ("_most", "_numbers", "ambiguous")

    def __init__(self, most: int) -> None:
        self.ambiguous = False
        self._most = most
        self._numbers: set[int] = set()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers)

    def __contains__(self, opaque: int) -> bool:
        """Say whether one is there."""
        return opaque in self._numbers

    def add(self, opaque: int) -> None:
        """Put one in, if there is room."""
        if opaque in self._numbers or len(self._numbers) >= self._most:
            self.ambiguous = True
        else:
            self._numbers.add(opaque)

    def add_all(self, opaques: Sequence[int]) -> None:
        """Put in as many as there is room for, from the front."""
        numbers = self._numbers
        expected = len(numbers) + len(opaques)
        if expected <= self._most:
            numbers.update(opaques)
        else:
            for opaque in opaques:
                if len(numbers) < self._most:
                    numbers.add(opaque)
        if len(numbers) < expected:
            self.ambiguous = True

    def discard(self, opaque: int) -> bool:
        """Take one out; say whether it was there."""
        if opaque in self._numbers:
            self._numbers.remove(opaque)
            return True
        return False

    def settle(self, chunk: Buffer, position: int) -> tuple[int, int]:
        """Step over nothing: here it would cost as much as reading the answers one by one does."""
        del chunk
        return position, 0


class Segment:
    """The plain frames that one call took, as ``scanning`` says.

    Args:
        owed: where they were noted.
        starts: where the frames begin, and at last where the last one ends.
        opaques: their numbers.
        flags: of those whose flag is not 0, by index.
        stretches: for frames with the same key in a row, the first one's index and the number of their run; and at last
            their count.
        codes: the request code of each run.
        numbers: the number of each run's key.
        first_new: as attribute.
        new: as attribute.
    """

    __slots__ = ("_codes", "_flags", "_opaques", "_owed", "_starts", "_stretches", "first_new", "new", "runs", "stop")

    def __init__(
        self,
        owed: Opaques,
        starts: list[int],
        opaques: list[int],
        flags: dict[int, int],
        stretches: list[tuple[int, int]],
        *,
        codes: list[int],
        numbers: list[int],
        first_new: int,
        new: list[Key],
    ) -> None:
        self._owed = owed
        self._starts = starts
        self._opaques = opaques
        self._flags = flags
        self._stretches = stretches
        self._codes = codes
        self.stop = starts[-1]
        self.first_new = first_new
        self.new = new
        self.runs = self._as_runs(numbers)

    def _as_runs(self, numbers: list[int]) -> list[Run]:
        starts, flags = self._starts, self._flags
        indexes: list[Sequence[int]] = [()] * len(numbers)
        sizes = [0] * len(numbers)
        for at, (first, run) in enumerate(self._stretches[:-1]):
            stop = self._stretches[at + 1][0]
            have = indexes[run]
            indexes[run] = [*have, *range(first, stop)] if have else range(first, stop)
            sizes[run] += starts[stop] - starts[first]
        oneway = [0] * len(numbers)
        for index, flag in flags.items():
            if flag & FLAG_ONEWAY:
                oneway[self._run_of(index)] += 1
        return list(zip(numbers, indexes, sizes, oneway, strict=True))

    def _run_of(self, index: int) -> int:
        low, high = 0, len(self._stretches) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._stretches[middle][0] <= index:
                low = middle
            else:
                high = middle
        return self._stretches[low][1]

    def __len__(self) -> int:
        """Return how many frames were taken."""
        return len(self._opaques)

    def frame(self, index: int) -> tuple[int, int, int, int, int, int]:
        """Return one frame: the number of its run in ``runs``, start, stop, request code, opaque and flag."""
        run = self._run_of(index)
        start, stop = self._starts[index], self._starts[index + 1]
        return run, start, stop, self._codes[run], self._opaques[index], self._flags.get(index, 0)

    def sizes(self, indexes: Sequence[int]) -> list[int]:
        """Return the bytes that some frames are on the wire."""
        starts = self._starts
        return [starts[index + 1] - starts[index] for index in indexes]

    def kept(self, refused: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
        """Return the slices of ``[start, end)`` that are left without these frames."""
        starts, slices = self._starts, []
        for index in refused:
            if starts[index] > start:
                slices.append((start, starts[index]))
            start = starts[index + 1]
        if start < end:
            slices.append((start, end))
        return slices

    def refuse(self, refused: Sequence[int], head: bytes, tail: bytes) -> tuple[bytes, int]:
        """Take refused frames out of what is owed, and make the answers to those that are not oneway."""
        opaques, flags, discard = self._opaques, self._flags, self._owed.discard
        if flags:
            refused = [index for index in refused if not flags.get(index, 0) & FLAG_ONEWAY]
        around = len(head) + len(tail)
        answers: list[bytes] = []
        for index in refused:
            opaque = opaques[index]
            discard(opaque)
            number = b"%d" % opaque
            size = around + len(number)
            answers += (_answer_prefix(size + 4, size), head, number, tail)
        return b"".join(answers), len(refused)


class Scanner:
    """Scans the stream of one client.

    Args:
        owed: where sends that expect an answer are noted.
    """

    __slots__ = ("_numbers", "_owed")

    def __init__(self, owed: Opaques) -> None:
        self._owed = owed
        #: Of keys as they are on the wire: request code, name and producer group.
        self._numbers: dict[tuple[int, str, str], int] = {}

    def scan(self, chunk: Buffer, position: int, max_length: int) -> Segment:
        """Take the plain frames from ``position`` on, as ``scanning`` says."""
        size = len(chunk)
        starts: list[int] = []
        opaques: list[int] = []
        flags: dict[int, int] = {}
        stretches: list[tuple[int, int]] = []
        runs: dict[tuple[int, str, str], int] = {}
        last_code, last_name = -1, ""
        last_group: str | None = None
        while size - position >= PREFIX_BYTES and len(runs) < MAX_RUNS:
            length, word = prefix_at(chunk, position)
            body_at = position + PREFIX_BYTES + (word & HEADER_LENGTH)
            stop = position + 4 + length
            if body_at > size or body_at > stop or length > max_length or word & HEADER_LENGTH > MAX_HEADER_BYTES:
                break
            header_type = word >> 24
            # Only the headers are copied: a chunk may be scanned again behind each frame that is not plain.
            header = bytes(chunk[position + PREFIX_BYTES : body_at])
            if header_type == HEADER_JSON:
                try:
                    raw = decode_json(header)
                    if not header.isascii():
                        header.decode()
                except (msgspec.DecodeError, ValueError, RecursionError):
                    break
                code, flag, opaque, ext = raw.code, raw.flag, raw.opaque, raw.extFields
                fields = _fields_of(code)
                if fields is None or ext is None or flag & FLAG_RESPONSE or _DOLLAR in header:
                    break
                name: str | None
                group: str | None
                batch: str | bool | None
                if fields is SEND_V2_FIELDS:
                    name, group, batch, sys_flag = ext.b, ext.a, ext.m, ext.f
                elif fields is SEND_V1_FIELDS:
                    name, group, batch, sys_flag = ext.topic, ext.producerGroup, ext.batch, ext.sysFlag
                else:
                    name, group, batch, sys_flag = ext.group, "", None, None
                if sys_flag is not None and sys_flag not in PLAIN_SYS_FLAG_VALUES:
                    break
                if batch is not None and batch != "false" and (batch is True or str(batch).lower() == "true"):
                    break
            elif header_type == HEADER_BINARY:
                send = read_java_send(header)
                if send is None:
                    break
                code, _, _, opaque, flag, name, group = send
            else:
                break
            if name != last_name or group != last_group or code != last_code:
                if not name or name == RETRY_PREFIX or len(name) > MAX_NAME_CHARS:
                    break
                if is_internal(name):
                    break
                if group is not None and len(group) > MAX_NAME_CHARS:
                    break
                stretches.append((len(starts), runs.setdefault((code, name, group or ""), len(runs))))
                last_code, last_name, last_group = code, name, group
            if flag:
                flags[len(starts)] = flag
            starts.append(position)
            opaques.append(opaque)
            position = stop
        return self._segment(starts, opaques, flags, stretches, runs=runs, stop=position)

    def _segment(
        self,
        starts: list[int],
        opaques: list[int],
        flags: dict[int, int],
        stretches: list[tuple[int, int]],
        *,
        runs: dict[tuple[int, str, str], int],
        stop: int,
    ) -> Segment:
        starts.append(stop)
        stretches.append((len(opaques), 0))
        if flags:
            self._owed.add_all([opaque for at, opaque in enumerate(opaques) if not flags.get(at, 0) & FLAG_ONEWAY])
        else:
            self._owed.add_all(opaques)
        known = self._numbers
        if len(known) > MAX_KEYS:
            known.clear()
        first_new, new, numbers = len(known), [], []
        for key in runs:
            number = known.get(key)
            if number is None:
                number = known[key] = len(known)
                new.append(_charged(*key))
            numbers.append(number)
        return Segment(
            self._owed,
            starts,
            opaques,
            flags,
            stretches,
            codes=[code for code, _, _ in runs],
            numbers=numbers,
            first_new=first_new,
            new=new,
        )


def _charged(code: int, name: str, group: str) -> Key:
    """Return what a send is charged to, as ``reading.charge`` does."""
    if SENDS[code] is SEND_BACK_FIELDS:
        return KIND_RETRY_GROUP, name, group
    if name.startswith(RETRY_PREFIX):
        return KIND_RETRY_GROUP, name[len(RETRY_PREFIX) :], group
    return KIND_TOPIC, name, group
