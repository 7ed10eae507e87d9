"""``sluice limits explain --config``: explains limits from a configuration file, without a sidecar."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from admin.client.api import by_flag
from admin.common.errors import SettingsError
from admin.config.sources import Flags, load
from admin.run.composition import compose
from admin.wire import FieldProblem
from admin.wire.sentences import explained
from limiter.deciding.limits import Limits
from proxy.datapath.explanation import explain
from proxy.stats.question import Question, QuestionError


def explain_file(file: str, question: Mapping[str, str]) -> dict[str, Any]:
    """Return the response that ``GET explain`` would return, without live state. Raises SettingsError."""
    plan = compose(load(file, os.environ, Flags()))
    limits = Limits(plan.rule_set.at(datetime.now(UTC)))
    try:
        answer = explain(Question(**question), limits, plan.data_path_config().listeners, plan.protocols, 0)
    except QuestionError as error:
        raise SettingsError(by_flag(FieldProblem(error.parameter, error.detail))) from None
    found: dict[str, Any] = msgspec.to_builtins(explained(answer, live=False))
    return found
