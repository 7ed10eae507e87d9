"""Zero-downtime restart: a new process takes over the listening sockets and the limiter state.

The previous process listens on a Unix socket in its state directory, like HAProxy with ``expose-fd listeners``. The new
process, started with ``take_over``, connects::

    new                                                  old
    reads its configuration
    hello                                             →
                                                      ←  offer, with the listening sockets and the state directory's
                                                         lock. From now on, makes no more edits
    reads the edits, binds new sockets (this can fail)
    ready                                             →
                                                         stops accepting connections and requests, closes the spool
                                                      ←  left: the limiter state
    opens the spool, accepts
    serves                                            →
                                                         closes the admin address, drains
                                                      ←  spent: the permits spent since "left"
                                                         exits

If the connection breaks before "serves", the previous process resumes. Each side's first message has the same format in
all versions. Only the service's user may connect to the Unix socket, because any process that connects gets the
listening sockets.
"""

import array
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from admin.common.errors import StartError
from admin.edits import limiter_state
from admin.edits.service import EditService
from admin.edits.store import Store
from limiter.deciding.limits import SavedLimits, Spent
from proxy.control import DataPath

_log = structlog.get_logger(__name__)

NAME: Final = "hand-over.socket"

_VERSION: Final = 1
_LENGTH_BYTES: Final = 8
_MAX_BYTES: Final = 512 * 1024 * 1024
#: The kernel's SCM_MAX_FD.
_MAX_DESCRIPTORS: Final = 253
#: How long edits may wait while the new process reads the edits and binds its sockets.
_READY_S: Final = 60.0
#: How long connections may wait while the previous process closes the spool and encodes its state.
_LEFT_S: Final = 60.0
#: How long connections may wait while the new process tries the brokers and opens the spool.
_SERVES_S: Final = 30.0
_MODE: Final = 0o600

_Message = TypeVar("_Message")


class _Hello(msgspec.Struct, frozen=True):
    version: int


class _Offer(msgspec.Struct, frozen=True):
    """Sent together with the descriptors of the lock and the listening sockets, in this order."""

    version: int
    pid: int


class _Ready(msgspec.Struct, frozen=True):
    pass


class _Left(msgspec.Struct, frozen=True):
    limits: bytes


class _Serves(msgspec.Struct, frozen=True):
    pass


class _SpentSince(msgspec.Struct, frozen=True):
    spent: list[Spent]


class _BrokenError(Exception):
    """Raised if the other process closes the connection or sends an invalid message."""


class _Channel:
    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self.close = sock.close

    async def send(self, message: object, descriptors: Iterable[int] = ()) -> None:
        body = msgspec.msgpack.encode(message)
        data = memoryview(len(body).to_bytes(_LENGTH_BYTES) + body)
        passed = array.array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)] if passed else []
        try:
            sent = await self._sock.sendmsg([data], rights)
            while sent < len(data):
                sent += await self._sock.send(data[sent:])
        except OSError as error:
            raise _BrokenError(error.strerror or str(error)) from None

    async def receive(self, kind: type[_Message]) -> tuple[_Message, list[int]]:
        head, descriptors = bytearray(), array.array("i")
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * descriptors.itemsize)
        try:
            while len(head) < _LENGTH_BYTES:
                data, passed, _, _ = await self._sock.recvmsg(_LENGTH_BYTES - len(head), room, socket.MSG_CMSG_CLOEXEC)
                for level, what, rights in passed:
                    if level == socket.SOL_SOCKET and what == socket.SCM_RIGHTS:
                        descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
                if not data:
                    raise _BrokenError("the other process closed the connection")  # noqa: TRY301 - to close the descriptors
                head += data
            size = int.from_bytes(head)
            if size > _MAX_BYTES:
                raise _BrokenError("the other process sent an invalid message")  # noqa: TRY301 - as above
            body = bytearray()
            while len(body) < size:
                data = await self._sock.recv(min(size - len(body), 1024 * 1024))
                if not data:
                    raise _BrokenError("the other process closed the connection")  # noqa: TRY301 - as above
                body += data
            return msgspec.msgpack.decode(body, type=kind), descriptors.tolist()
        except (OSError, msgspec.MsgspecError) as error:
            _close(descriptors)
            raise _BrokenError(str(error)) from None
        except BaseException:
            _close(descriptors)
            raise


class Predecessor:
    """The previous process, which has passed its ``sockets`` and the state directory's ``lock`` to this one."""

    def __init__(self, channel: _Channel, pid: int, lock: int, sockets: list[socket.socket]) -> None:
        self.pid, self.lock, self.sockets, self._channel = pid, lock, sockets, channel
        self.close = channel.close

    async def take(self) -> SavedLimits | None:
        """Make the previous process stop accepting clients. Return its limiter state, if usable. Raises StartError."""
        try:
            with trio.fail_after(_LEFT_S):
                await self._channel.send(_Ready())
                left, _ = await self._channel.receive(_Left)
        except (_BrokenError, trio.TooSlowError) as error:
            raise _failed(error) from None
        try:
            return limiter_state.decode(left.limits)
        except ValueError as error:
            _log.warning(
                "could not restore limiter state from the previous process; buckets start full", reason=str(error)
            )
            return None

    async def serve(self) -> None:
        """Tell the previous process that this process now accepts clients. Raises StartError."""
        try:
            await self._channel.send(_Serves())
        except _BrokenError as error:
            raise _failed(error) from None
        _log.info("took over from the previous process, which is draining", pid=self.pid)

    async def settle(self, data_path: DataPath) -> None:
        """Wait until the previous process exits, and deduct the permits that it spent after ``take``."""
        try:
            since, _ = await self._channel.receive(_SpentSince)
        except _BrokenError:
            _log.warning(
                "previous process exited without a final report; its last messages are not charged to limits",
                pid=self.pid,
            )
        else:
            data_path.debit(since.spent)
        finally:
            self.close()


async def reach(directory: Path) -> Predecessor | None:
    """Connect to the process that uses a state directory, if there is one. Raises StartError."""
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = _Channel(sock)
    try:
        with _in_directory(directory) as address:
            await sock.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        channel.close()
        return None
    except OSError as error:
        channel.close()
        why = error.strerror or error
        raise StartError(
            f"{directory / NAME}: cannot connect to the running process: {why}; stop that process first"
        ) from None
    try:
        with trio.fail_after(_READY_S):
            await channel.send(_Hello(_VERSION))
            offer, (lock, *descriptors) = await channel.receive(_Offer)
    except (_BrokenError, ValueError, trio.TooSlowError) as error:
        channel.close()
        raise _failed(error) from None
    return Predecessor(channel, offer.pid, lock, [socket.socket(fileno=descriptor) for descriptor in descriptors])


class HandOver:
    """Hands over to a new process. ``handed_over`` is set when the new process accepts clients."""

    def __init__(  # noqa: PLR0917 - one for each part to hand over
        self,
        store: Store,
        admin: socket.socket | None,
        data_path: DataPath,
        edits: EditService,
        grace_s: float,
        handed_over: trio.Event,
    ) -> None:
        self.handed_over = handed_over
        self._store, self._admin, self._data_path, self._edits, self._grace_s = store, admin, data_path, edits, grace_s
        self._successor: tuple[_Channel, SavedLimits] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listening:
            try:
                # Set the mode before the socket gets a name.
                os.fchmod(listening.fileno(), _MODE)
                directory = self._store.directory
                assert directory is not None  # noqa: S101 - checked by the caller
                with _in_directory(directory) as address:
                    # A killed process may have left its socket behind.
                    (directory / NAME).unlink(missing_ok=True)
                    await listening.bind(address)
                listening.listen(1)
            except OSError as error:
                _log.warning("take-over unavailable", reason=error.strerror or str(error))
                task_status.started()
                return
            task_status.started()
            while True:
                accepted, _ = await listening.accept()
                channel = _Channel(accepted)
                try:
                    await self._hand_over_to(channel)
                finally:
                    channel.close()

    async def finish(self) -> None:
        """After the drain, tell the new process which permits were spent since the hand-over."""
        if self._successor is not None:
            channel, saved = self._successor
            with suppress(_BrokenError), trio.move_on_after(1):
                await channel.send(_SpentSince(self._data_path.spent_since(saved)))

    async def _hand_over_to(self, channel: _Channel) -> None:
        try:
            with trio.fail_after(_READY_S):
                await channel.receive(_Hello)
            async with self._edits.lock:
                with trio.fail_after(_READY_S):
                    admin = () if self._admin is None else (self._admin.fileno(),)
                    descriptors = (self._store.lock, *self._data_path.descriptors(), *admin)
                    await channel.send(_Offer(_VERSION, os.getpid()), descriptors)
                    await channel.receive(_Ready)
                await self._hand_over_listeners(channel)
                self.handed_over.set()
                # Keep the lock, because only the new process may make edits now.
                await trio.sleep_forever()
        except (_BrokenError, trio.TooSlowError, OverflowError) as error:
            _log.warning("take-over failed; this process continues", reason=_reason(error))

    async def _hand_over_listeners(self, channel: _Channel) -> None:
        try:
            saved = await self._data_path.hand_over(self._grace_s)
            with trio.fail_after(_SERVES_S):
                await channel.send(_Left(limiter_state.encode(saved)))
                await channel.receive(_Serves)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._data_path.resume()
            raise
        self._successor = channel, saved


def _failed(error: Exception) -> StartError:
    return StartError(f"take_over failed: {_reason(error)}; the running process should still be serving")


def _reason(error: Exception) -> str:
    return (
        "the other process did not respond in time"
        if isinstance(error, trio.TooSlowError)
        else str(error) or type(error).__name__
    )


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@contextmanager
def _in_directory(directory: Path) -> Iterator[str]:
    """Yield a short address for the socket, because its path may exceed the maximum of 107 bytes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
