"""The HTTP API: what the data path knows, as JSON. Nothing here changes anything.

Errors are problem details (RFC 9457) with one member more: ``parameter`` names the one that is wrong.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from admin.wire import EXPLAIN, PROBLEM, Problem
from proxy.control import DataPath, Question, QuestionError


def routes(data_path: DataPath) -> list[BaseRoute]:
    """Make the API's routes."""

    async def explain(request: Request) -> Response:
        try:
            explanation = await data_path.explain(_question(request))
        except QuestionError as error:
            problem = Problem(detail=error.detail, parameter=error.parameter)
            return _json(problem, status=problem.status, media_type=PROBLEM)
        return _json(explanation)

    return [Route(EXPLAIN, explain)]


def _question(request: Request) -> Question:
    """Read a question from the query.

    Raises:
        QuestionError: a parameter is unknown, missing or given twice.
    """
    given: dict[str, str] = {}
    for parameter, value in request.query_params.multi_items():
        if parameter not in Question.__struct_fields__:
            raise QuestionError(parameter, f"unknown parameter; there are {', '.join(Question.__struct_fields__)}")
        if parameter in given:
            raise QuestionError(parameter, "given more than once")
        given[parameter] = value
    for parameter in ("kind", "name"):
        if not given.get(parameter):
            raise QuestionError(parameter, "missing")
    return Question(**given)


def _json(body: object, status: int = 200, media_type: str = "application/json") -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type=media_type)
