"""The finished files in the folder, of whatever run: how many bytes they are, and which go when it is too many.

All of it blocks, and belongs on a thread.
"""

import stat

from admin.rejection_log.figures import Figures
from admin.rejection_log.folder import Folder, finished_name


class Retention:
    """The finished files that lie in a folder.

    What has such a name and is no file of its own does not count, as it cannot be deleted as one.

    Args:
        folder: where.
        max_total_bytes: all files together, those that are being written among them.
        figures: what is deleted is counted there.
    """

    def __init__(self, folder: Folder, max_total_bytes: int, figures: Figures) -> None:
        self._folder = folder
        self._max_total_bytes = max_total_bytes
        self._figures = figures
        #: The oldest first: time of the last change, name and bytes.
        self._files: list[tuple[int, str, int]] = []

    def look(self) -> None:
        """Look which there are.

        Raises:
            OSError: the folder cannot be read.
        """
        found = []
        for name in self._folder.names():
            if finished_name(name) is None:
                continue
            try:
                status = (self._folder.path / name).lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, name, status.st_size))
        self._files = sorted(found)

    def delete_oldest(self, written_bytes: int) -> None:
        """Delete the oldest until all together are few enough bytes.

        Args:
            written_bytes: of the files that are being written.

        Raises:
            OSError: one could not be deleted; the others were.
        """
        total = written_bytes + sum(size for _, _, size in self._files)
        stay: list[tuple[int, str, int]] = []
        failed: OSError | None = None
        while self._files and total > self._max_total_bytes:
            _, name, size = oldest = self._files.pop(0)
            try:
                (self._folder.path / name).unlink()
            except FileNotFoundError:
                pass
            except OSError as error:
                # One that cannot be deleted must not keep all others.
                failed = error
                stay.append(oldest)
                continue
            else:
                self._figures.deleted_files += 1
                self._figures.deleted_bytes += size
            total -= size
        self._files[:0] = stay
        self._figures.kept_bytes = total
        if failed is not None:
            raise failed
