"""Edits over HTTP of a running sidecar, and their effect on open connections."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, stored
from harness.sidecar import Sluice, StartSluice

pytestmark = pytest.mark.integration

_CONFIG = """
[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"

[defaults.topic]
rate = "unlimited"
"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Sluice:
    route = broker.route()
    return start_sluice(routes=(route,), config=_CONFIG.format(listen=route.listen, broker=route.broker))


class Api:
    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(address, timeout=60)

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, dict[str, str], dict[str, Any]]:
        content = None if body is None else json.dumps(body)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            given["Content-Type"] = "application/json"
        self.connection.request(method, f"/api/v1/{path}", content, given)
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(text or b"{}")

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def api(sidecar: Sluice) -> Iterator[Api]:
    with closing(Api(sidecar.admin)) as connected:
        yield connected


def test_edit_applies_to_the_next_request_of_every_connection(sidecar: Sluice, api: Api) -> None:
    with ExitStack() as connections:
        clients = [connections.enter_context(FrameClient(sidecar.routes[0].listen)) for _ in range(8)]
        for rate, passes in ((0, False), ("unlimited", True), (0, False)):
            assert api.ask("PUT", "limits/topic/next", {"rate": rate})[0] == 200
            # An answer means that the limit is active: no connection waits here.
            answers = [client.ask(send("next"))[0] for client in clients]
            assert (stored(answers), len(refused(answers))) == ((8, 0) if passes else (0, 8))
        assert api.ask("DELETE", "limits/topic/next")[0] == 200
        assert stored(client.ask(send("next"))[0] for client in clients) == 8


def test_switch_applies_to_the_next_request(sidecar: Sluice, api: Api) -> None:
    api.ask("PUT", "limits/topic/switched", {"rate": 0})
    with FrameClient(sidecar.routes[0].listen) as client:
        for of in ("all", "topic"):
            assert refused(client.ask(send("switched")))
            assert api.ask("PUT", f"switches/{of}", {"limiting": False, "reason": "test"})[0] == 200
            assert stored(client.ask(send("switched"))) == 1
            assert api.ask("DELETE", f"switches/{of}")[0] == 200
        assert refused(client.ask(send("switched")))


def test_of_writers_with_the_same_tag_one_wins_and_nothing_is_lost(sidecar: Sluice, api: Api) -> None:
    # Each adds one to the rate, and starts again if another writer was faster.
    writers, times = 4, 10
    assert api.ask("PUT", "limits/topic/contested", {"rate": 1})[0] == 200
    stale = []
    failed: list[object] = []

    def write() -> None:
        with closing(Api(sidecar.admin)) as mine:
            for _ in range(times):
                status = 412
                while status == 412:
                    _, headers, entry = mine.ask("GET", "limits/topic/contested")
                    rate = entry["limit"]["rate"] + 1
                    status, _, said = mine.ask(
                        "PUT", "limits/topic/contested", {"rate": rate}, If_Match=headers["etag"]
                    )
                    if status == 412:
                        stale.append(said["etag"])
                if status != 200:
                    failed.append(said)

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert api.ask("GET", "limits/topic/contested")[2]["limit"]["rate"] == 1 + writers * times
    changes = api.ask("GET", "audit?target=limits/topic/contested&limit=500")[2]["changes"]
    assert [each["new"]["rate"] for each in changes] == list(range(1 + writers * times, 0, -1))


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while raw := response.readline():
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_events_tell_the_table_then_the_change_and_the_traffic(sidecar: Sluice, api: Api) -> None:
    api.ask("PUT", "limits/topic/watched", {"rate": 5})
    with closing(Api(sidecar.admin)) as watching, FrameClient(sidecar.routes[0].listen) as client:
        watching.connection.request("GET", "/api/v1/events?search=watched")
        response = watching.connection.getresponse()
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        told = events(response)
        name, page = next(told)
        assert name == "limits"
        assert [row["key"] for row in page["rows"]] == ["topic/watched"]
        api.ask("PUT", "limits/topic/watched", {"rate": 1, "reason": "less"})
        change = next(data for name, data in told if name == "change")
        assert (change["reason"], change["new"]["rate"]) == ("less", 1)
        rows = (row for name, data in told if name == "limits" for row in data["rows"])
        live: dict[str, Any] = {}
        while not live.get("limited"):
            # Refuse again before each read, because old refusals no longer count.
            client.ask(*[send("watched") for _ in range(20)])
            live = next(rows).get("live") or {}
        assert live["last_refused_at"]


def test_streams_end_when_the_sidecar_drains(start_sluice: StartSluice, broker: EmbeddedBroker) -> None:
    route = broker.route()
    stopping = start_sluice(routes=(route,), config=_CONFIG.format(listen=route.listen, broker=route.broker))
    with closing(Api(stopping.admin)) as watching:
        watching.connection.request("GET", "/api/v1/events")
        response = watching.connection.getresponse()
        assert next(events(response))[0] == "limits"
        assert stopping.stop() == 0
        # Without a request in flight the sidecar may close without an answer, but must not leave the connection open.
        with suppress(http.client.IncompleteRead):
            response.read()
