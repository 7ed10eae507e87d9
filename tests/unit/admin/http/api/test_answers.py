from admin.edits.model import StaleError, StoreError
from admin.http.api.answers import refused


def test_a_full_disk_says_what_can_be_done() -> None:
    answer = refused(StoreError("disk full"))
    assert (answer.status_code, b"volatile=1" in answer.body) == (507, True)


def test_a_stale_edit_of_a_batch_is_named() -> None:
    assert b'"field":"edits.3"' in refused(StaleError(3, "abc", "mine"), batch=True).body
