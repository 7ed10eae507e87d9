import pytest

from admin.demo.ledger import EDITED, WINDOW_S, Counts, Ledger, TopicLoad, check

LOADS = (TopicLoad("runaway", 2000, runaway=True), TopicLoad("orders", 100))
LIMIT_PER_S = 200.0


def ledger(runaway: Counts, orders: Counts) -> Ledger:
    made = Ledger(LOADS)
    made.counts = {"runaway": runaway, "orders": orders}
    return made


def failed(made: Ledger, stored: dict[str, int], elapsed_s: float = 10.0) -> list[str]:
    return [each.text.split(":")[0] for each in check(made, stored, LIMIT_PER_S, elapsed_s) if not each.holds]


GOOD = Counts(sent=20_000, passed=2_100, refused=17_900)
QUIET = Counts(sent=1_000, passed=1_000)


def test_a_run_in_order_passes_every_check() -> None:
    assert failed(ledger(GOOD, QUIET), {"runaway": 2_100, "orders": 1_000}) == []


@pytest.mark.parametrize(
    ("runaway", "orders", "stored", "expected"),
    [
        (
            GOOD,
            Counts(sent=1_000, passed=999, refused=1),
            {"runaway": 2_100, "orders": 999},
            "quiet topics lost nothing",
        ),
        (GOOD, QUIET, {"runaway": 2_100, "orders": 999}, "quiet topics lost nothing"),
        (GOOD, QUIET, {"runaway": 2_101, "orders": 1_000}, "clients and broker agree on every topic above"),
        (GOOD, QUIET, {"orders": 1_000}, "clients and broker agree on every topic above"),
        (
            Counts(sent=20_000, passed=2_202, refused=17_798),
            QUIET,
            {"runaway": 2_202, "orders": 1_000},
            "runaway stayed within its limit",
        ),
        (
            Counts(sent=20_000, passed=2_100, refused=17_899),
            QUIET,
            {"runaway": 2_100, "orders": 1_000},
            "every request was answered",
        ),
        (
            Counts(sent=20_000, passed=2_100, refused=17_899, failed=1),
            QUIET,
            {"runaway": 2_100, "orders": 1_000},
            "every request was answered",
        ),
    ],
)
def test_inconsistent_counts_are_reported(
    runaway: Counts, orders: Counts, stored: dict[str, int], expected: str
) -> None:
    assert expected in failed(ledger(runaway, orders), stored)


def test_a_runaway_that_was_never_refused_was_not_held() -> None:
    made = ledger(Counts(sent=20_000, passed=2_000), QUIET)
    assert "runaway stayed within its limit" in failed(made, {"runaway": 2_000, "orders": 1_000})


def test_a_run_too_short_to_reach_the_limit_is_in_order() -> None:
    made = ledger(Counts(sent=100, passed=100), Counts(sent=5, passed=5))
    assert failed(made, {"runaway": 100, "orders": 5}, 0.05) == []


def test_rates_are_those_of_the_last_seconds() -> None:
    made = Ledger(LOADS)
    assert made.rates("orders") == (0, 0, 0)
    for second in range(20):
        made.counts["orders"] = Counts(sent=100 * second, passed=60 * second, refused=40 * second)
        made.mark(second)
    assert made.rates("orders") == (100, 60, 40)
    made.mark(19 + WINDOW_S)
    assert made.rates("orders") == (0, 0, 0)


def test_after_an_edit_or_a_switch_nothing_is_compared_with_the_limits() -> None:
    made = ledger(Counts(sent=20_000, passed=20_000), Counts(sent=10, passed=5, refused=5))
    made.edited = True
    checks = check(made, {"runaway": 20_000, "orders": 5}, LIMIT_PER_S, 1.0)
    assert all(each.holds for each in checks)
    assert EDITED in checks
    assert not all(each.holds for each in check(made, {"runaway": 1, "orders": 5}, LIMIT_PER_S, 1.0))
