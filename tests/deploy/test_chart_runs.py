"""Runs the chart's output like kubelet: configuration and tokens are volumes that change."""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, sends, stored
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.sidecar import sluice_command

POD_IP: Final = "127.0.0.2"
TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05
LIMITS: Final = """
[[limits]]
kind = "topic"
name = "orders"
rate = {rate}

[[limits]]
kind = "topic"
name = "stopped"
rate = 0
"""
Render = Callable[..., list[Any]]


class Volume:
    """A ConfigMap or Secret in a pod, changed like kubelet's atomic writer: a link moves to a new folder."""

    def __init__(self, directory: Path, files: Mapping[str, str]) -> None:
        self.directory = directory
        self._number = 0
        directory.mkdir()
        self.put(files)
        for name in files:
            (directory / name).symlink_to(f"..data/{name}")

    def put(self, files: Mapping[str, str]) -> None:
        self._number += 1
        new = self.directory / f"..{self._number}"
        new.mkdir()
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
        link = self.directory / "..data_tmp"
        link.symlink_to(new.name)
        link.rename(self.directory / "..data")


class Deployed(NamedTuple):
    process: ManagedProcess
    config: Volume
    tokens: Volume
    secrets: dict[str, str]
    admin: str
    listen: str
    render: Callable[[str], str]
    container: Any

    def get(self, path: str, token: str = "", method: str = "GET", body: Any = None) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.admin}{path}", method=method)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline or not self.process.running:
                raise self.process.failure(f"{what}: never")
            time.sleep(POLL_S)

    def rate(self) -> float:
        status, text = self.get("/api/v1/limits/topic/orders", self.secrets["operator-token"])
        assert status == 200, text
        return float(json.loads(text)["limit"]["rate"])


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def deployed(render: Render, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Deployed]:
    """The sidecar of a pod whose address is 127.0.0.2, with the embedded broker on 127.0.0.1 and the same port."""
    admin_port = free_port()
    port = broker.address.rpartition(":")[2]
    common = ("--set", f"broker.nameServers=a:1,admin.port={admin_port}")
    places = {
        "/etc/sluice-tokens": str(tmp_path / "tokens"),
        "/var/lib/sluice": str(tmp_path / "state"),
    }

    def objects(limits: str) -> list[Any]:
        values = tmp_path / "values.yaml"
        values.write_text(json.dumps({"config": limits, "listeners": [{"name": "main", "port": int(port)}]}))
        return render(*common, "-f", values)

    def configuration(limits: str) -> str:
        (config,) = (each for each in objects(limits) if each["metadata"]["name"] == "mq-sluice" and "data" in each)
        text: str = config["data"]["sluice.toml"]
        for place, here in places.items():
            text = text.replace(f'"{place}/', f'"{here}/')
        return text

    rendered = objects(LIMITS.format(rate=5))
    (secret,) = (each["stringData"] for each in rendered if each["kind"] == "Secret")
    (stateful,) = (each for each in rendered if each["kind"] == "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["initContainers"]
    config = Volume(tmp_path / "config", {"sluice.toml": configuration(LIMITS.format(rate=5))})
    tokens = Volume(tmp_path / "tokens", {"tokens": secret["tokens"]})
    (tmp_path / "state").mkdir()
    env = {"POD_IP": POD_IP, "SLUICE_REJECTION_LOG_INSTANCE": "mq-sluice-0"}
    assert {each["name"] for each in container["env"]} == set(env)
    arguments = [word.replace("/etc/sluice", str(config.directory)) for word in container["args"]]
    command = sluice_command(*arguments, covered=False)
    with ManagedProcess("sluice", command, log=tmp_path / "sluice.log", env=env, cwd=tmp_path) as process:
        process.wait_for_line("sluice is up", timeout_s=TIMEOUT_S)
        yield Deployed(
            process, config, tokens, secret, f"127.0.0.1:{admin_port}", f"{POD_IP}:{port}", configuration, container
        )


def test_probes_are_answered_without_a_token_and_all_else_only_with_one(deployed: Deployed) -> None:
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert deployed.get(deployed.container[probe]["httpGet"]["path"])[0] == 200
    assert deployed.get("/metrics")[0] == 401
    metrics = deployed.secrets["metrics-token"]
    assert deployed.get("/metrics", metrics)[0] == 200
    limit = {"rate": 9}
    assert deployed.get("/api/v1/limits/topic/orders", metrics, "PUT", limit)[0] == 403
    assert deployed.get("/api/v1/limits/topic/orders", deployed.secrets["operator-token"], "PUT", limit)[0] == 200


def test_clients_reach_the_broker_at_its_advertised_address_and_are_limited(
    deployed: Deployed, broker: EmbeddedBroker
) -> None:
    with FrameClient(deployed.listen) as client:
        answers = client.ask(*sends(3, "orders"), *sends(4, "stopped"))
    assert (stored(answers), len(refused(answers))) == (3, 4)
    assert (broker.stored("orders"), broker.stored("stopped")) == (3, 0)


def test_a_changed_configmap_is_in_force_without_a_restart(deployed: Deployed) -> None:
    assert deployed.rate() == 5
    deployed.config.put({"sluice.toml": deployed.render(LIMITS.format(rate=7))})
    deployed.wait("the new limit", lambda: deployed.rate() == 7)
    _, text = deployed.get("/api/v1/audit", deployed.secrets["operator-token"])
    assert "file change" in text


def test_a_changed_secret_is_in_force_without_a_restart(deployed: Deployed) -> None:
    old, new = deployed.secrets["operator-token"], base64.b32encode(b"another token of an operator").decode()
    deployed.tokens.put({"tokens": f"operator write {new}\n"})
    deployed.wait("the new token", lambda: deployed.get("/api/v1/state", new)[0] == 200)
    assert deployed.get("/api/v1/state", old)[0] == 401


def test_a_wrong_configmap_changes_nothing_and_is_reported(deployed: Deployed) -> None:
    metrics = deployed.secrets["metrics-token"]
    assert "sluice_reload_ok 1.0" in deployed.get("/metrics", metrics)[1]
    deployed.config.put({"sluice.toml": deployed.render(LIMITS.format(rate='"many"'))})
    deployed.wait("the alert", lambda: "sluice_reload_ok 0.0" in deployed.get("/metrics", metrics)[1])
    assert deployed.rate() == 5
    deployed.config.put({"sluice.toml": deployed.render(LIMITS.format(rate=8))})
    deployed.wait("the mended limit", lambda: deployed.rate() == 8)
    assert "sluice_reload_ok 1.0" in deployed.get("/metrics", metrics)[1]
