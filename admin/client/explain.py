"""``sluice limits explain``: asks a running sidecar, or a configuration file, and lays the answer out."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from admin.client.api import Api, flag, path
from admin.common.errors import SettingsError
from admin.wire import FieldProblem
from proxy.stats.question import Explanation, Question, QuestionError


def ask_sidecar(api: Api, question: Question) -> Explanation:
    """Ask a running sidecar.

    Raises:
        OperatorError: the question makes no sense there, or there is no answer.
    """
    given = {name: value for name, value in msgspec.to_builtins(question).items() if value}
    for parameter, value in given.items():
        if not value.isprintable():
            # Characters that are not UTF-8, among others, cannot be sent.
            raise _wrong(parameter, f"{value!r} has characters that cannot be printed")
    return api.get(path("explain"), given).read(Explanation)


def ask_file(file: str, question: Question) -> Explanation:
    """Say what a configuration file would do now, without live state.

    Raises:
        SettingsError: the file is invalid, or the question makes no sense with it.
    """
    # Only here, as data path and protocols take time to import.
    from admin.config.sources import Flags, load  # noqa: PLC0415 - see above
    from admin.run.composition import compose  # noqa: PLC0415 - see above
    from admin.wire.sentences import explained  # noqa: PLC0415 - see above
    from limiter.deciding.limits import Limits  # noqa: PLC0415 - see above
    from proxy.datapath.explanation import explain  # noqa: PLC0415 - see above

    plan = compose(load(file, os.environ, Flags()))
    limits = Limits(plan.rule_set.at(datetime.now(UTC)))
    try:
        explanation = explain(question, limits, plan.data_path_config().listeners, plan.protocols, 0)
    except QuestionError as error:
        raise _wrong(error.parameter, error.detail) from None
    return explained(explanation, live=False)


def _wrong(parameter: str, detail: str) -> SettingsError:
    return SettingsError(f"{flag(FieldProblem(parameter, detail))}: {detail}")


def text(explanation: Explanation) -> str:
    """Lay out an explanation; its sentences are the server's."""
    return "\n".join(_lines(explanation))


def _lines(explanation: Explanation) -> Iterator[str]:
    yield explanation.text
    yield from explanation.sentences
    for place, limit in enumerate(explanation.limits, 1):
        yield ""
        yield f"{place}. {limit.kind.replace('_', ' ')} {limit.name}: {limit.text}"
        yield from (f"   {each.name:<6} {each.text}" for each in limit.details)
    if explanation.confirm is not None:
        yield ""
        yield explanation.confirm.text
        yield from (f"   {each.name:<7} {each.text}" for each in explanation.confirm.details)
    if explanation.unapplied:
        yield ""
        yield "These rules match but do not apply:"
        yield from (f"   {each.text}" for each in explanation.unapplied)
