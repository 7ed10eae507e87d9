"""What is made of Spark's event log."""

import json
from pathlib import Path

from report_cost import Cost, _text, _with_events


def test_jobs_stages_and_tasks_are_counted_and_the_time_of_tasks_added_up(tmp_path: Path) -> None:
    metrics = {"Executor CPU Time": 1_500_000_000, "Executor Deserialize CPU Time": 250_000_000}
    events = [
        {"Event": "SparkListenerApplicationStart"},
        {"Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"},
        {"Event": "SparkListenerJobStart"},
        {"Event": "SparkListenerTaskEnd", "Task Metrics": metrics},
        # Of one that was killed nothing is known.
        {"Event": "SparkListenerTaskEnd"},
        {"Event": "SparkListenerTaskEnd", "Task Metrics": metrics},
        {"Event": "SparkListenerStageCompleted"},
        {"Event": "SparkListenerJobEnd"},
    ]
    (tmp_path / "app-1").write_text("\n".join(map(json.dumps, events)))
    (tmp_path / ".app-1.crc").write_bytes(b"\xff")
    found = _with_events(Cost(wall_s=9.0, cpu_s=12.0), tmp_path)
    assert found == Cost(9.0, 12.0, tasks_s=3.5, jobs=1, executions=1, stages=1, tasks=3)


def test_the_table_has_a_line_for_each_command() -> None:
    lines = _text({"an empty Spark": Cost(4.0, 9.26, 401.4), "report": Cost(60.0, 100.0, jobs=124)}).splitlines()
    assert lines[2] == "| an empty Spark | 4.0 | 9.3 | 0.0 | 0.0 | 401 | 0 | 0 | 0 | 0 |"
    assert lines[3].startswith("| report | 60.0 | 100.0 |")
    assert " | 124 | " in lines[3]
    assert {line.count("|") for line in lines} == {11}
