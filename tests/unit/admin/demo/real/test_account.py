"""How the demos with real brokers count; the demos themselves are run by the integration tests."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from admin.demo.ledger import EDITED, Counts, Ledger, TopicLoad
from admin.demo.real import account

LIMIT = account.Limit(200, 0.5)
METRICS = """\
# TYPE sluice_requests counter
sluice_requests_total{kind="topic",resource="runaway",verdict="pass"} 10
sluice_requests_total{kind="topic",resource="runaway",verdict="bypass"} 2
sluice_requests_total{kind="topic",resource="runaway",verdict="refuse"} 30
sluice_requests_total{kind="topic",resource="orders",verdict="refuse"} 500
sluice_requests_total{kind="retry_group",resource="runaway",verdict="refuse"} 500
# TYPE sluice_bypassed counter
sluice_bypassed_total{handler="rate_limit",reason="late"} 2
"""


def test_sluice_counts_the_flood_itself() -> None:
    assert account.of_metrics(text_string_to_metric_families(METRICS), "topic", "runaway") == (12, 30, 2)


def ledger(quiet: Counts, flooded: Counts) -> Ledger:
    made = Ledger((TopicLoad("orders", 40), TopicLoad("runaway", 0, runaway=True)))
    made.counts = {"orders": quiet, "runaway": flooded}
    return made


@pytest.mark.parametrize(
    ("quiet", "flooded", "stored", "wrong"),
    [
        (Counts(40, 40), Counts(9000, 2100, 6900), {"orders": 40, "runaway": 2101}, []),
        (Counts(40, 40), Counts(9000, 2100, 6900), {"orders": 40, "runaway": 2102}, ["runaway was held"]),
        (Counts(40, 40), Counts(9000, 9000, 0), {"orders": 40, "runaway": 100}, ["runaway was held"]),
        (Counts(40, 39, 1), Counts(10, 10), {"orders": 40, "runaway": 10}, ["quiet topics"]),
        (Counts(40, 40), Counts(10, 10), {"orders": 39, "runaway": 10}, ["quiet topics"]),
        (Counts(40, 39), Counts(10, 10), {"orders": 39, "runaway": 10}, ["every request"]),
        (Counts(40, 39, 0, 1), Counts(10, 10), {"orders": 39, "runaway": 10}, []),
    ],
)
def test_clients_sluice_and_broker_are_held_against_each_other(
    quiet: Counts, flooded: Counts, stored: dict[str, int], wrong: list[str]
) -> None:
    # 10 s at 200/s, half a second's burst, and one.
    checks = account.checks(ledger(quiet, flooded), stored, LIMIT, 10.0, bypassed=0)
    failed = [check.text for check in checks if not check.holds]
    assert [text.startswith(start) for text, start in zip(failed, wrong, strict=True)] == [True] * len(wrong)


def test_what_bypassed_the_limiter_is_allowed_and_told() -> None:
    counted = ledger(Counts(40, 40), Counts(9000, 2150, 6850))
    checks = account.checks(counted, {"orders": 40, "runaway": 2150}, LIMIT, 10.0, bypassed=50)
    assert all(check.holds for check in checks)
    assert any("and 50 that bypassed the limiter" in check.text for check in checks)


def test_without_sluice_there_is_nothing_to_hold_the_flood_to() -> None:
    counted = ledger(Counts(40, 10, 30), Counts(9000, 9000))
    checks = account.checks(counted, {"orders": 10, "runaway": 9000}, None, 10.0, bypassed=0)
    assert all(check.holds for check in checks)
    assert checks[-1].text == "without Sluice, of 40 messages for quiet topics the broker refused 30"
    counted.kind = "queue"
    checks = account.checks(counted, {"orders": 10, "runaway": 9000}, None, 10.0, bypassed=0)
    assert checks[-1].text == "without Sluice, of 40 messages for quiet queues the broker refused 30"


def test_after_an_edit_nothing_is_held_against_the_limits() -> None:
    counted = ledger(Counts(40, 10, 30), Counts(9000, 8000, 1000))
    counted.edited = True
    checks = account.checks(counted, {"orders": 10, "runaway": 8000}, LIMIT, 10.0, bypassed=0)
    assert all(check.holds for check in checks)
    assert EDITED in checks


def test_the_version_of_the_rules_tells_an_edit() -> None:
    text = "# TYPE sluice_rule_set_version gauge\nsluice_rule_set_version 3.0\n"
    assert account.version_of(text_string_to_metric_families(text)) == 3
    assert account.version_of(text_string_to_metric_families("")) == 0
