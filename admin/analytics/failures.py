"""What Spark's errors mean, in a line for people; its own words go to its log.

A Spark error is pages of Java. What an operator can do something about is recognised by the few words that Java, Hadoop
and Spark have for it; of anything else the first line is shown.
"""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from admin.errors import OperatorError, StartError

_LONGEST: Final = 300
"""Characters of a line that is Spark's own."""
_INDEX: Final = re.compile(r"^(?:\[[A-Z_.0-9]+\] )+")

_Words = Callable[[re.Match[str]], str]


def _place(text: str) -> str:
    """Write a path as people know it."""
    return re.sub(r"^file:/+", "/", text.rstrip(".,;:'\"`"))


_MEANINGS: Final[tuple[tuple[str, _Words], ...]] = (
    (
        r"java\.lang\.OutOfMemoryError|GC overhead limit|Java heap space|SparkOutOfMemoryError",
        lambda _: "Spark ran out of memory: give it more with --driver-memory, as 2g, or a shorter time with --since",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        lambda _: (
            "no space left on the device: of --out, or of the temporary directory (TMPDIR chooses another);"
            " what was there before is still whole"
        ),
    ),
    (
        r"(?:PATH_NOT_FOUND\]? ?|FileNotFoundException: |does not exist: )[^\n]*?(\b(?!file:)\w+://[^\s'\"`,]+)",
        lambda found: f"{_place(found[1])}: nothing is there; see whether the address is right",
    ),
    (
        r"(?:PATH_NOT_FOUND\]? ?|FileNotFoundException: (?:File )?|does not exist: )[^\n]*?((?:file:)?/[^\s'\"`,]+)",
        lambda found: f"{_place(found[1])}: vanished while it was read; run it again",
    ),
    (
        r"(?:AccessControlException|AccessDeniedException|Permission denied)[^\n]*?((?:\b\w+:/?)?/[^\s'\"`,()]+)",
        lambda found: f"{_place(found[1])}: permission denied; choose another place or run it as another user",
    ),
    (
        r"(?:AccessControlException|AccessDeniedException|Permission denied)",
        lambda _: "permission denied; choose another --out or run it as another user",
    ),
    (
        r"Mkdirs failed to create (?:file:)?(/\S+)",
        lambda found: f"{_place(found[1])}: cannot be made; choose another --out",
    ),
    (
        r"(?:Class (\S+FileSystem) not found|No FileSystem for scheme \"?(\w+)\"?)",
        lambda found: (
            f"no reader for {found[2] or found[1]} here; let Spark fetch it, as with "
            "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2"
        ),
    ),
    (
        r"(?:All masters are unresponsive|Failed to connect to master|Master removed our application)",
        lambda _: "the Spark master does not answer, or has no room for this; see --master",
    ),
    (r"Input/output error", lambda _: "the disk cannot be read or written (input/output error)"),
    (
        r"(?:CANNOT_READ_FILE_FOOTER|is not a Parquet file)[^\n]*?((?:file:)?/[^\s'\"`,()]+)",
        lambda found: f"{_place(found[1])}: is no table of a report; choose another --out, or delete it",
    ),
)
"""What to look for in an error with all its causes, and what it means; the first that fits."""


@contextmanager
def in_words(log: Path | None) -> Iterator[None]:
    """Turn what Spark raises into a line, with the rest in its log.

    Args:
        log: Spark's log, to which the error is appended; None keeps it nowhere.

    Raises:
        StartError: Spark failed, or a file cannot be read or written.
    """
    try:
        yield
    except Exception as error:
        first = _first_of_sparks(error)
        if isinstance(error, OperatorError | BrokenPipeError):
            raise
        if first is None and isinstance(error, OSError) and error.strerror:
            file = error.filename or "a file in --out"
            raise StartError(f"{file}: cannot be read or written: {error.strerror.lower()}") from error
        if first is None:
            raise
        text = "".join(traceback.format_exception(error))
        if log is not None:
            with suppress(OSError), log.open("a", encoding="utf-8") as stream:
                stream.write(text)
        raise StartError(meaning(first, text) + (f"; see {log}" if log is not None else "")) from error


def _first_of_sparks(error: BaseException | None) -> BaseException | None:
    """Return what went wrong first with Spark: when Java is gone, letting go of things fails as well."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - an optional extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    found = None
    while error is not None:
        # What Java raised has been put into words by Spark's Python side, if that could.
        is_its_words = isinstance(found, PySparkException) and isinstance(error, Py4JJavaError)
        if (isinstance(error, PySparkException | Py4JError) or _is_lost(error)) and not is_its_words:
            found = error
        error = error.__cause__ or error.__context__
    return found


def _is_lost(error: BaseException) -> bool:
    """Tell whether the Java process is gone."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - as above

    return isinstance(error, Py4JNetworkError | ConnectionRefusedError | ConnectionResetError)


def meaning(error: BaseException, text: str = "") -> str:
    """Say in a line what Spark's error means.

    Args:
        error: what was raised.
        text: the error with all its causes, where it says more.
    """
    text = f"{error}\n{text}"
    for pattern, words in _MEANINGS:
        if found := re.search(pattern, text):
            return words(found)
    if _is_lost(error):
        return "Spark's Java process ended in the middle; it may have been killed for want of memory (--driver-memory)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A failed job begins with where it failed; the cause is what matters.
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = _INDEX.sub("", (causes or lines or [type(error).__name__])[0])
    return f"Spark failed: {first[:_LONGEST].rstrip('.')}"
