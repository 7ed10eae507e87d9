"""A scripted disk in memory: the test decides when jobs are done, and when they fail."""

from collections import deque
from collections.abc import Callable, Sequence
from zlib import crc32

from proxy.spool.segments import RECORD_BYTES, RUN_BYTES, Extent, with_crc
from proxy.spool.store import Job, Read, Release, Sync, Write, _check

NONCE = b"\x81nonce\x82\x83"


class FakeDisk:
    """Writes are done in order, as by the real one, and reads on request."""

    done: Callable[[Sequence[Job]], object]

    def __init__(self) -> None:
        self.writes: deque[Write | Sync] = deque()
        self.reads: list[Read] = []
        self.runs: dict[Extent, bytes] = {}
        self.size = 0
        self.writes_total = self.reads_total = 0
        self.written_bytes_total = 0
        self.recoverable: dict[Extent, int] = {}

    def submit(self, job: Job) -> None:
        if isinstance(job, Release):
            for extent, recoverable in job.extents:
                del self.runs[extent]  # once, and only existing ones
                assert self.recoverable.pop(extent) == recoverable
        elif isinstance(job, Read):
            self.reads.append(job)
        else:
            self.writes.append(job)

    def close(self) -> None:
        pass

    @property
    def is_idle(self) -> bool:
        return not self.writes and not self.reads

    def finish_write(self, error: OSError | None = None) -> None:
        job = self.writes.popleft()
        if isinstance(job, Sync) or (error is not None and not job.cancelled):
            job.error = error
        elif not job.cancelled:
            # The real one also computes checksums when it writes.
            body = b"".join([with_crc(job.body[0], job.body[1:]), *job.body[1:]] if job.is_single else job.body)
            data = job.header._replace(body_crc=crc32(body)).pack(NONCE) + body
            assert len(data) == job.header.length + job.header.body_bytes
            job.extent = Extent(0, self.size, len(data))
            self.runs[job.extent] = data
            self.recoverable[job.extent] = job.header.recoverable
            self.size += len(data)
            self.writes_total += 1
            self.written_bytes_total += len(data)
        self.done([job])

    def finish_read(self, index: int = 0, error: OSError | None = None) -> None:
        job = self.reads.pop(index)
        if error is not None:
            job.error = error
        elif not self.runs.get(job.extent):
            job.error = FileNotFoundError(2, "No such file")
        else:
            data = self.runs[job.extent]
            length = RUN_BYTES + job.name_bytes + RECORD_BYTES if job.index_only else len(data)
            _check(job, data[:length], NONCE)
            self.reads_total += 1
        self.done([job])

    def finish_all(self) -> None:
        while not self.is_idle:
            if self.writes:
                self.finish_write()
            if self.reads:
                self.finish_read()
