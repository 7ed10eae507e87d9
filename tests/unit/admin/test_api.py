import json
from typing import Any

import httpx2
import msgspec
import pytest

from admin import wire
from admin.settings import Endpoint
from proxy.control import Explanation, Question, QuestionError


async def get(endpoint: Endpoint, query: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://{endpoint}{wire.EXPLAIN}?{query}")


async def test_an_explanation_is_json_that_reads_back(
    served: Endpoint, data_path: Any, explanation: Explanation
) -> None:
    data_path.explanation = explanation
    answer = await get(served, "kind=topic&name=orders&client=10.1.2.3&producer_group=g&listener=main")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert data_path.asked == [Question("topic", "orders", "10.1.2.3", "g", "main")]
    assert msgspec.json.decode(answer.content, type=Explanation) == explanation
    assert json.loads(answer.content)["limits"][0]["state"]["stored_permits"] == 0


async def test_names_are_decoded(served: Endpoint, data_path: Any, explanation: Explanation) -> None:
    data_path.explanation = explanation
    await get(served, "kind=topic&name=a%20%26%C3%A9")
    assert data_path.asked == [Question("topic", "a &é")]


@pytest.mark.parametrize(
    ("query", "parameter", "detail"),
    [
        ("name=a", "kind", "missing"),
        ("kind=topic", "name", "missing"),
        ("kind=topic&name=", "name", "missing"),
        ("kind=topic&name=a&name=b", "name", "given more than once"),
        (
            "kind=topic&name=a&clinet=1",
            "clinet",
            "unknown parameter; there are kind, name, client, producer_group, listener, at",
        ),
    ],
)
async def test_a_wrong_query_is_a_problem_that_names_the_parameter(
    served: Endpoint, data_path: Any, query: str, parameter: str, detail: str
) -> None:
    answer = await get(served, query)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == 400
    assert answer.json() == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": detail,
        "parameter": parameter,
    }
    assert data_path.asked == []


async def test_a_question_that_makes_no_sense_is_a_problem(served: Endpoint, data_path: Any) -> None:
    data_path.explanation = QuestionError("client", "'x' is not an IP address")
    answer = await get(served, "kind=topic&name=a&client=x")
    assert answer.status_code == 400
    assert (answer.json()["parameter"], answer.json()["detail"]) == ("client", "'x' is not an IP address")


async def test_nothing_can_be_changed(served: Endpoint) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"http://{served}{wire.EXPLAIN}?kind=topic&name=a")
    assert answer.status_code == 405
