"""The report's Kubernetes manifests are valid and agree with the rest of the project."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from admin.cli.report import read_conf
from admin.common.version import sluice_version

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "spark"
KUBERNETES = "1.31"


def documents() -> list[Any]:
    return [
        document for path in sorted(DEPLOY.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text("utf-8"))
    ]


def by_kind(kind: str) -> Any:
    (found,) = (each for each in documents() if each["kind"] == kind)
    return found


def pod() -> Any:
    return by_kind("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def driver() -> Any:
    return pod()["containers"][0]


def properties() -> dict[str, str]:
    lines = by_kind("ConfigMap")["data"]["spark.properties"].splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {key: value.strip() for key, value in words}


@pytest.mark.parametrize("document", documents(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_manifest_is_valid(document: Any) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_executors_see_the_volumes_where_the_driver_does() -> None:
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim"
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod()["volumes"]
        if "persistentVolumeClaim" in volume
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in driver()["volumeMounts"]}
    found = properties()
    for name, claim in claims.items():
        assert found[f"{prefix}.{name}.options.claimName"] == claim
        assert found[f"{prefix}.{name}.mount.path"] == mounts[name]
    assert set(claims.values()) == {each["metadata"]["name"] for each in documents() if "Claim" in each["kind"]}


def test_properties_are_sparks_own_and_images_are_of_this_version() -> None:
    found = properties()
    assert len(read_conf(tuple(f"{key}={value}" for key, value in found.items()))) == len(found)
    image = f"registry.example.com/sluice-report:{sluice_version()}"
    assert driver()["image"] == found["spark.kubernetes.container.image"] == image


def test_submitted_script_takes_the_arguments_of_the_manifest() -> None:
    arguments = driver()["args"]
    script = arguments.index("/opt/sluice/report.py")
    report = [word for word in arguments[script + 1 :] if word.startswith("--")]
    helped = subprocess.run(
        [sys.executable, DEPLOY / "report.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(flag in helped for flag in report)
    assert "--once" in report
