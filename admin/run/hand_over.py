"""One process takes the place of another that runs, and nobody is refused meanwhile, nor forgiven.

The one that runs listens on a Unix socket in its state directory, as HAProxy does with ``expose-fd listeners``; the new
one, started with ``take_over``, comes there::

    new                                                            running
    reads its configuration
    hello                                                       →
                                                                ←  offer, with the listening sockets and the lock of the
                                                                   state directory; from here on it makes no edits
    reads the edits, binds what is new: all that can fail
    ready                                                       →
                                                                   accepts nobody any more, takes no further requests,
                                                                   closes the spool
                                                                ←  left: the limits as they are now
    opens the spool, accepts
    serves                                                      →
                                                                   closes the admin address, drains
                                                                ←  spent: what it spent of the limits since
                                                                   ends

Whoever connects between the two waits in the backlog of the socket, which both have. If the connection breaks before
"serves", the one that runs goes on: until "ready" nothing has happened there, and afterwards it accepts again. The
first message of each side keeps its form in all versions; what limits look like has a version of its own.

Who may connect there may have all of it: the socket is for the user of the service only.
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
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run import limiter_state
from limiter.deciding.limits import SavedLimits, Spent
from proxy.control import DataPath

_log = structlog.get_logger(__name__)

NAME: Final = "hand-over.socket"
"""In the state directory."""

_VERSION: Final = 1
_LENGTH_BYTES: Final = 8
_MAX_BYTES: Final = 512 * 1024 * 1024
#: The kernel passes no more at once (SCM_MAX_FD).
_MAX_DESCRIPTORS: Final = 253
#: To read edits may take a while; a process that hangs must not keep others from editing.
_READY_S: Final = 60.0
#: To close the spool and read the limits likewise; nobody is accepted meanwhile, nor by the one that runs.
_LEFT_S: Final = 60.0
#: To try the brokers and open the spool likewise; meanwhile nobody is accepted.
_SERVES_S: Final = 30.0
_MODE: Final = 0o600

_Message = TypeVar("_Message")


class _Hello(msgspec.Struct, frozen=True):
    version: int


class _Offer(msgspec.Struct, frozen=True):
    """The descriptors are those of the lock and then of the sockets."""

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


class BrokenError(Exception):
    """The other process has gone, or says what this one does not understand."""


class _Channel:
    """A connection between the two processes: messages, and descriptors along with them."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock

    def close(self) -> None:
        self._sock.close()

    async def send(self, message: object, descriptors: Iterable[int] = ()) -> None:
        """Raises BrokenError."""
        body = msgspec.msgpack.encode(message)
        data = memoryview(len(body).to_bytes(_LENGTH_BYTES) + body)
        passed = array.array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)] if passed else []
        try:
            sent = await self._sock.sendmsg([data], rights)
            while sent < len(data):
                sent += await self._sock.send(data[sent:])
        except OSError as error:
            raise BrokenError(error.strerror or str(error)) from None

    async def receive(self, kind: type[_Message]) -> tuple[_Message, list[int]]:
        """Return a message and the descriptors that came with it; raises BrokenError."""
        head, descriptors = bytearray(), array.array("i")
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * descriptors.itemsize)
        try:
            while len(head) < _LENGTH_BYTES:
                data, passed, _, _ = await self._sock.recvmsg(_LENGTH_BYTES - len(head), room, socket.MSG_CMSG_CLOEXEC)
                for level, what, rights in passed:
                    if level == socket.SOL_SOCKET and what == socket.SCM_RIGHTS:
                        descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
                if not data:
                    raise BrokenError("it has gone")  # noqa: TRY301 - to give back what came
                head += data
            size = int.from_bytes(head)
            if size > _MAX_BYTES:
                raise BrokenError("it sent what is no message")  # noqa: TRY301 - likewise
            body = bytearray()
            while len(body) < size:
                data = await self._sock.recv(min(size - len(body), 1024 * 1024))
                if not data:
                    raise BrokenError("it has gone")  # noqa: TRY301 - likewise
                body += data
            return msgspec.msgpack.decode(body, type=kind), descriptors.tolist()
        except (OSError, msgspec.MsgspecError) as error:
            _close(descriptors)
            raise BrokenError(str(error)) from None
        except BaseException:
            _close(descriptors)
            raise


class Predecessor:
    """The process whose place this one takes.

    Args:
        channel: the connection to it.
        pid: its process.
        lock: the lock of the state directory that both have now.
        sockets: its listening sockets.
    """

    def __init__(self, channel: _Channel, pid: int, lock: int, sockets: list[socket.socket]) -> None:
        self.pid = pid
        self.lock = lock
        self.sockets = sockets
        self._channel = channel

    async def take(self) -> SavedLimits | None:
        """Have it accept nobody any more; return its limits, or None if they cannot be used here.

        Raises:
            StartError: it has gone, goes on itself, or does not answer.
        """
        try:
            with trio.fail_after(_LEFT_S):
                await self._channel.send(_Ready())
                left, _ = await self._channel.receive(_Left)
        except (BrokenError, trio.TooSlowError) as error:
            raise _failed(error) from None
        try:
            return limiter_state.decode(left.limits)
        except limiter_state.UnreadableError as error:
            _log.warning("the limits of the process before are not used; limits begin full", reason=str(error))
            return None

    async def serve(self) -> None:
        """Tell it that this process accepts clients.

        Raises:
            StartError: it has gone, or goes on itself.
        """
        try:
            await self._channel.send(_Serves())
        except BrokenError as error:
            raise _failed(error) from None
        _log.info("took over from the process before, which drains", pid=self.pid)

    async def settle(self, data_path: DataPath) -> None:
        """Wait until it ends, and take off the limits what it spent of them meanwhile."""
        try:
            since, _ = await self._channel.receive(_SpentSince)
        except BrokenError:
            _log.warning(
                "the process before ended without a word: what it spent of limits last is not known", pid=self.pid
            )
        else:
            data_path.debit(since.spent)
        finally:
            self._channel.close()

    def close(self) -> None:
        """Leave everything to it."""
        self._channel.close()


async def reach(directory: Path) -> Predecessor | None:
    """Ask the process that runs in a state directory for what it has; None if there is none.

    Raises:
        StartError: it does not answer as one does.
    """
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
        raise StartError(f"{directory / NAME}: {error.strerror or error}; stop the process that runs") from None
    try:
        with trio.fail_after(_READY_S):
            await channel.send(_Hello(_VERSION))
            offer, (lock, *descriptors) = await channel.receive(_Offer)
    except (BrokenError, ValueError, trio.TooSlowError) as error:
        channel.close()
        raise _failed(error) from None
    return Predecessor(channel, offer.pid, lock, [socket.socket(fileno=descriptor) for descriptor in descriptors])


class HandOver:
    """Leaves everything to a process that comes for it.

    Args:
        store: the state directory.
        admin: the socket of the admin address, if there is one.
        data_path: what is left.
        edits: what is to make no changes from then on.
        grace_s: how long the drain may take.
        handed_over: set once the other process serves.
    """

    def __init__(  # noqa: PLR0917 - all that there is to hand over
        self,
        store: Store,
        admin: socket.socket | None,
        data_path: DataPath,
        edits: EditService,
        grace_s: float,
        handed_over: trio.Event,
    ) -> None:
        self._store = store
        self._admin = admin
        self._data_path = data_path
        self._edits = edits
        self._grace_s = grace_s
        self._handed_over = handed_over
        self._successor: tuple[_Channel, SavedLimits] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for another process until cancelled; if nobody can come, that is a line in the log."""
        listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listening:
            try:
                # Before there is a name by which anybody could connect.
                os.fchmod(listening.fileno(), _MODE)
                directory = self._store.directory
                assert directory is not None  # noqa: S101 - without one nobody can come
                with _in_directory(directory) as address:
                    # Left by a process that has gone, or by the one whose place this one has taken.
                    (directory / NAME).unlink(missing_ok=True)
                    await listening.bind(address)
                listening.listen(1)
            except OSError as error:
                _log.warning("no other process can take over from this one", reason=error.strerror or str(error))
                task_status.started()
                return
            task_status.started()
            while True:
                accepted, _ = await listening.accept()
                channel = _Channel(accepted)
                try:
                    await self._leave_to(channel)
                finally:
                    channel.close()

    async def finish(self) -> None:
        """Tell the other process what was spent since, after the drain."""
        if self._successor is not None:
            channel, saved = self._successor
            with suppress(BrokenError), trio.move_on_after(1):
                await channel.send(_SpentSince(self._data_path.spent_since(saved)))

    async def _leave_to(self, channel: _Channel) -> None:
        try:
            with trio.fail_after(_READY_S):
                await channel.receive(_Hello)
            async with self._edits.held():
                with trio.fail_after(_READY_S):
                    admin = () if self._admin is None else (self._admin.fileno(),)
                    descriptors = (self._store.lock, *self._data_path.descriptors(), *admin)
                    await channel.send(_Offer(_VERSION, os.getpid()), descriptors)
                    await channel.receive(_Ready)
                await self._leave_listeners_to(channel)
                self._handed_over.set()
                # What is written down from now on is the other one's.
                await trio.sleep_forever()
        except (BrokenError, trio.TooSlowError, OverflowError) as error:
            _log.warning("another process came to take over and did not; this one goes on", reason=_reason(error))

    async def _leave_listeners_to(self, channel: _Channel) -> None:
        try:
            saved = await self._data_path.hand_over(self._grace_s)
            with trio.fail_after(_SERVES_S):
                await channel.send(_Left(limiter_state.encode(saved)))
                await channel.receive(_Serves)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._data_path.go_on()
            raise
        self._successor = channel, saved


def _failed(error: Exception) -> StartError:
    return StartError(f"take_over: the process that runs did not hand over: {_reason(error)}; it goes on if it can")


def _reason(error: Exception) -> str:
    return "it did not answer in time" if isinstance(error, trio.TooSlowError) else str(error) or type(error).__name__


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@contextmanager
def _in_directory(directory: Path) -> Iterator[str]:
    """Give the address of the socket: a path in its place may be longer than the 107 bytes that one may have."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
