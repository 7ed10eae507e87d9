import io

import pytest
from rich.console import Console, RenderableType

from admin.config.addresses import Endpoint
from admin.demo import view
from admin.demo.broker import Broker, Loopback
from admin.demo.embedded import LOADS, heading
from admin.demo.ledger import EDITED, Check, Counts, Ledger

HEADING = heading(
    Endpoint("127.0.0.1", 10911),
    Loopback(Broker(), "127.0.0.1:10912", "127.0.0.1:9876"),
    "http://127.0.0.1:9870/",
    ["port 1 is taken"],
)


def screen(renderable: RenderableType, columns: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(LOADS)
    made.mark(0.0)
    for load in LOADS:
        passed = 120_200 if load.runaway else 90_000
        made.counts[load.topic] = Counts(
            1_200_000 if load.runaway else passed, passed, 1_079_800 if load.runaway else 0
        )
    made.mark(600.0)
    return made


def test_ten_minutes_of_figures_fits_80_columns(ledger: Ledger) -> None:
    stored = {topic: counts.passed for topic, counts in ledger.counts.items()}
    for lines in (
        screen(HEADING),
        screen(view.live(ledger, 600, None)),
        screen(view.summary(ledger, stored, 200, 600, [Check(holds=True, text="all well")])),
    ):
        text = "\n".join(lines)
        assert "…" not in text
        assert max(len(line.rstrip()) for line in lines) <= 80


@pytest.mark.parametrize("columns", [40, 60, 79])
def test_a_narrow_terminal_gets_fewer_figures_but_whole_ones(ledger: Ledger, columns: int) -> None:
    live = screen(view.live(ledger, 600, None), columns)
    (runaway,) = [line.split() for line in live if line.strip().startswith("runaway")]
    assert runaway[1:4] == ["2,000", "200", "1,800"]
    stored = {topic: counts.passed for topic, counts in ledger.counts.items()}
    account = screen(view.summary(ledger, stored, 200, 600, []), max(columns, 60))
    (runaway,) = [line.split() for line in account if line.strip().startswith("runaway")]
    assert {"1,200,000", "120,200", "1,079,800"} <= set(runaway)
    for lines in (live, account, screen(HEADING, columns)):
        assert "…" not in "\n".join(lines)


def test_shown_values_are_labelled(ledger: Ledger) -> None:
    assert "mean of the last 5 s" in "\n".join(screen(view.live(ledger, 600, None)))
    text = "\n".join(screen(HEADING))
    assert "mean of the last 5 s" in text
    assert "one initial burst of 200" in text
    assert "port 1 is taken" in text


def test_a_mean_above_the_limit_is_explained_by_the_burst(ledger: Ledger) -> None:
    stored = {topic: counts.passed for topic, counts in ledger.counts.items()}
    text = "\n".join(screen(view.summary(ledger, stored, 200, 10, [])))
    assert "A topic may store 200/s and one burst of 200: up to 220/s over 10.0 s" in text
    for checks, elapsed_s in (([EDITED], 10.0), ([], 0.0)):
        assert "one burst" not in "\n".join(screen(view.summary(ledger, stored, 200, elapsed_s, checks)))


def test_a_slow_rate_does_not_read_as_none() -> None:
    made = Ledger(LOADS)
    made.mark(0.0)
    made.counts["runaway"] = Counts(2, 1, 1)
    made.mark(5.0)
    assert "runaway 0.4/0.2/0.2" in view.line(made, 5.0)
    (runaway,) = [line.split() for line in screen(view.live(made, 5.0, None)) if line.strip().startswith("runaway")]
    assert runaway[1:4] == ["0.4", "0.2", "0.2"]


def test_one_refusal_among_many_shows(ledger: Ledger) -> None:
    assert "■□□□□□" in "\n".join(screen(view.live(ledger, 600, None)))
    assert str(view._bar(1_000_000, 1)) == "■■■■■□"
    assert str(view._bar(0, 5)) == "□□□□□□"
    assert str(view._bar(0, 0)) == ""


def test_a_check_that_fails_is_marked(ledger: Ledger) -> None:
    lines = screen(view.summary(ledger, {}, 200, 1, [Check(holds=False, text="lost"), Check(holds=True, text="kept")]))
    assert lines[-2:] == ["✗ lost", "✓ kept"]


def test_a_check_that_was_skipped_is_not_ticked(ledger: Ledger) -> None:
    assert screen(view.summary(ledger, {}, 200, 1, [EDITED]))[-1].startswith("- limits were changed")


def test_a_line_for_pipes_has_every_topic(ledger: Ledger) -> None:
    assert all(f"{load.topic} " in view.line(ledger, 1.0) for load in LOADS)
