import pytest

from admin.edits.model import ConflictError, EditError, NotFoundError, Problem, ReloadError, StaleError, StoreError
from admin.http.api.answers import refused


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EditError((Problem("rate", "wrong"),)), 400),
        (EditError((Problem("kind", "unknown"),)), 404),
        (StaleError(0, "abc", "mine"), 412),
        (NotFoundError("gone"), 404),
        (ConflictError("later"), 409),
        (StoreError("disk full"), 507),
        (ReloadError(("a", "b")), 409),
    ],
)
def test_every_error_of_an_edit_is_a_problem(error: Exception, status: int) -> None:
    assert refused(error).status_code == status


def test_a_full_disk_says_what_can_be_done() -> None:
    assert b"volatile=1" in refused(StoreError("disk full")).body


def test_what_is_no_problem_goes_on() -> None:
    with pytest.raises(KeyError):
        refused(KeyError("x"))


def test_a_stale_edit_of_a_batch_is_named() -> None:
    assert b'"field":"edits.3"' in refused(StaleError(3, "abc", "mine"), batch=True).body
