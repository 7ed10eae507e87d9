"""One direction of a connection: what goes on of a chunk, where, and what does not.

Frames pass as slices of the chunk, bodies as they come: the verdict on a content covers those still to come, which
pass, are dropped, or are added to its copy while it waits. Only a method whose content's header is still to come is
held back.

A chunk is read by ``feed`` and written by ``pass_on`` once it is decided; in between nothing is written, since it comes
in front of all that becomes ready meanwhile.
"""

from proxy.deciding.batch import Batch
from proxy.protocols.amqp091.channel import (
    BARRIER,
    DROPPED,
    GRANTED,
    NEW,
    PASSING,
    REFUSED,
    WAITING,
    Content,
    Method,
)
from proxy.protocols.amqp091.scanning import Scanned
from proxy.protocols.amqp091.waiting import Waiting
from proxy.protocols.base import Buffer


class Stream(Waiting):
    """One peer's stream, on its way to the other peer."""

    def pass_on(self, batch: Batch | None) -> None:
        """Queue what goes on of the chunk in hand, and take care of what does not."""
        if batch is not None and batch.verdicts:
            self._take_verdicts(batch)
        pieces, begun = self._pieces, self._begun
        if self._special or self._ready or self.waiting or self._begun_only:
            self._walk()
        elif pieces:
            for content in begun:
                if isinstance(content, Scanned):
                    content.pass_on()
                    continue
                content.fate = PASSING
                content.lane.writing = content
                self._goes_on(content, b"")
            buffer, start = pieces[0][:2]
            self.out.append(buffer[start : pieces[-1][2]])
        self._pieces, self._begun = [], []
        self._in_hand = False
        self.flush()

    def _take_verdicts(self, batch: Batch) -> None:
        """Note what was decided of the chunk in hand."""
        for index, verdict in batch.verdicts.items():
            self._take_verdict(batch.requests[index], verdict)

    def _walk(self) -> None:
        """Queue what goes on, piece by piece."""
        out = self.out
        run: Buffer = b""
        run_start = run_stop = 0
        for piece in self._pieces:
            buffer, start, stop, owner = piece
            if isinstance(owner, Scanned):
                owner.pass_on()
            elif owner is not None:
                lane = owner.lane
                # Before that is written which goes in front of a method.
                goes = not isinstance(owner, Method) or self._method_goes(owner, buffer, start, stop)
                if lane.ready and lane.writing is not owner:
                    if run_stop > run_start:
                        out.append(run[run_start:run_stop])
                        run_start = run_stop = 0
                    self._flush(lane, owner)
                if not goes or (isinstance(owner, Content) and not self._content_goes(owner, buffer, start, stop)):
                    continue
                if isinstance(owner, Content) and owner.marked:
                    # It is one piece.
                    buffer, start, stop, owner.marked = owner.marked, 0, len(owner.marked), b""
            if run is buffer and run_stop == start:
                run_stop = stop
            else:
                if run_stop > run_start:
                    out.append(run[run_start:run_stop])
                run, run_start, run_stop = buffer, start, stop
        if run_stop > run_start:
            out.append(run[run_start:run_stop])

    def _method_goes(self, owner: Method, buffer: Buffer, start: int, stop: int) -> bool:
        """Say whether methods go on now; otherwise they are set aside."""
        lane = owner.lane
        if not lane.after and (owner.waits != BARRIER or not lane.lines):
            return True
        self._set_aside(owner, bytes(buffer[start:stop]))
        return False

    def _content_goes(self, content: Content, buffer: Buffer, start: int, stop: int) -> bool:
        """Say whether bytes of a content go on now; otherwise they are dropped, or copied if it waits."""
        fate = content.fate
        if fate == NEW:
            if content.left_bytes < 0:
                if content in self._begun_only:
                    content.data = bytes(buffer[start:stop])
                    self._memory.take(content.waiting_bytes())
                return False
            fate = content.fate = self._fate(content)
            if fate == PASSING:
                content.lane.writing = content
                self._goes_on(content, buffer[start:stop] if content.gathers else b"")
            elif fate == WAITING:
                self._wait(content, bytearray(buffer[start:stop]))
            return fate == PASSING
        if fate == WAITING:
            data = content.data
            assert isinstance(data, bytearray)  # noqa: S101 - as _wait made it
            data += buffer[start:stop]
            self._memory.take(stop - start)
            if content.done:
                line = None if content.key is None else content.lane.lines.get(content.key)
                if line is not None and line.spools:
                    self._unsettled[line] = None
        return fate == PASSING

    def _fate(self, content: Content) -> int:
        """Say what becomes of a content that begins to go on."""
        lane = content.lane
        goes = content.verdict == GRANTED and not lane.after and content.key not in lane.lines
        if goes or content.key is None:
            return PASSING
        if lane.channel.dead or content.verdict == REFUSED:
            self._drop(content)
            return DROPPED
        return WAITING

    def end(self) -> None:
        """Queue what was held back of an unfinished frame, at the end of the stream, and forget what waits."""
        # It may belong to what waits: without that it would be the beginning of something else.
        waits = self.waiting > 0 or bool(self._begun_only)
        self.forget_all()
        if self._beginning and not waits and self.at_boundary():
            self.out.append(bytes(self._beginning))
            self._beginning.clear()
