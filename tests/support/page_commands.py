"""The commands of pages, in a reader's order, and those that a test cannot run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from claims import BLOCK, ROOT
from claims import PAGES as CLAIMING

PAGES: Final = (
    *CLAIMING,
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "deploy").rglob("*/*.md")),
)
"""All pages, except the bench's: each line of that takes minutes."""

SHELL: Final = frozenset({"", "sh", "console"})
"""The languages of blocks of commands."""

_COMMENT: Final = re.compile(r"\s+# .*$|^# .*$")
_FILE: Final = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Command(NamedTuple):
    """One line of a block."""

    line: str
    shown: tuple[str, ...] = ()


class NotRun(NamedTuple):
    """A command that a test cannot run."""

    line: str
    why: str
    instead: str


def commands_of(text: str) -> Iterator[Command]:
    for language, block in BLOCK.findall(text):
        if language in SHELL:
            yield from _commands_of_block(re.sub(r" *\\\n *", " ", block).splitlines())


def _commands_of_block(lines: list[str]) -> Iterator[Command]:
    printed = any(line.startswith("$ ") for line in lines)
    line, shown = "", list[str]()
    for each in lines:
        if printed and not each.startswith("$ "):
            shown.append(each)
            continue
        if line:
            yield Command(line, tuple(shown))
        line, shown = _COMMENT.sub("", each.removeprefix("$ ")).strip(), []
    if line:
        yield Command(line, tuple(shown))


def files_of(text: str) -> dict[str, str]:
    """Return the files of a page, by the names in their first lines."""
    return dict(_FILE.findall(text))


def is_there(instead: str) -> bool:
    """Say whether a target of make, or a test, exists."""
    if instead.startswith("make "):
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return re.search(rf"^{re.escape(instead.removeprefix('make '))}:", makefile, re.MULTILINE) is not None
    name, _, test = instead.partition("::")
    path = Path(ROOT, name)
    return path.exists() and (not test or f"def {test}(" in path.read_text(encoding="utf-8"))


_ITSELF: Final = "it is what runs this test, or runs beside it"
_SYSTEM: Final = "it changes the machine"
_NETWORK: Final = "it fetches packages from the network"
_CLUSTER: Final = "it needs a Kubernetes cluster"
_MINUTES: Final = "it takes minutes, and the machine for itself"
_CHART: Final = "tests/deploy/test_chart.py"

NOT_RUN: Final = (
    NotRun("make demo", "it goes on until Ctrl-C", "make chroot"),
    NotRun("python3 -m venv /tmp/client && /tmp/client/bin/pip install rocketmq==0.4.4", _NETWORK, "make parts"),
    NotRun(
        "/tmp/client/bin/python send.py",
        "it asks the demo's name server",
        "tests/integration/docs/test_commands.py::test_the_client_of_the_first_guide_is_limited",
    ),
    *(
        NotRun(f"make demo-rocketmq{how}", "it fetches RocketMQ", "tests/integration/test_demo_rocketmq.py")
        for how in ("", " SECONDS=30", " SECONDS=30 WITHOUT=1")
    ),
    NotRun("make demo-rocketmq5", "it fetches RocketMQ", "tests/integration/test_demo_rocketmq.py"),
    NotRun("make demo-rabbitmq", "it fetches PerfTest", "tests/integration/test_demo_rabbitmq.py"),
    NotRun("make test", _ITSELF, "make test"),
    NotRun("make test-all", _ITSELF, "make test-all"),
    NotRun("make setup", _NETWORK, "make setup"),
    NotRun("make lint types", _ITSELF, "make test"),
    NotRun("make unit fuzz", _ITSELF, "make fast"),
    NotRun("make parts", _NETWORK, "make operator"),
    NotRun("make bench", _MINUTES, "tests/bench/test_run.py"),
    NotRun("/opt/sluice/bin/pip install -c constraints.txt .", _NETWORK, "make chroot"),
    NotRun("/opt/sluice/bin/pip install ./native", _NETWORK, "make native"),
    NotRun("/opt/sluice/bin/pip install -c constraints.txt '.[spark]'", _NETWORK, "make setup"),
    NotRun("apt-get install openjdk-17-jre-headless", _SYSTEM, "make packages"),
    NotRun("FUZZ_FACTOR=20 .venv/bin/python -m pytest tests/fuzz", _MINUTES, "make fuzz"),
    NotRun(".venv/bin/python -m pytest tests/integration/test_send_back.py", _ITSELF, "make integration"),
    NotRun("sh deploy/systemd/install.sh", _SYSTEM, "make chroot"),
    *(
        NotRun(line, _SYSTEM, "make chroot")
        for line in (
            "chown root:sluice /etc/sluice/broker.key",
            "chmod 640 /etc/sluice/broker.key",
            "runuser -u sluice -- sluice check /etc/sluice/sluice.toml",
        )
    ),
    NotRun("systemctl enable --now sluice", _SYSTEM, "make chroot"),
    NotRun(
        "buildah bud --format docker -t sluice -f deploy/container/Containerfile .",
        "it needs a base image",
        "make chroot",
    ),
    NotRun(
        "podman run --read-only --cap-drop all --security-opt no-new-privileges --network host"
        " -v ./sluice.toml:/etc/sluice/sluice.toml:ro -v sluice:/var/lib/sluice sluice",
        "it needs the image",
        "make chroot",
    ),
    NotRun(
        "helm install broker-a deploy/helm/sluice -n rocketmq --set broker.nameServers=name-server:9876",
        _CLUSTER,
        _CHART,
    ),
    NotRun("helm upgrade --install sluice deploy/helm/sluice -n rocketmq -f values.yaml", _CLUSTER, _CHART),
    NotRun("kubectl apply -f broker-conf.yaml", _CLUSTER, _CHART),
    NotRun(
        "helm template sluice deploy/helm/sluice -n rocketmq -f values.yaml --set existing.patch=true"
        " --show-only templates/patch.yaml > patch.yaml",
        "it needs helm, which `make deploy` builds",
        _CHART,
    ),
    NotRun("kubectl -n rocketmq patch statefulset broker-a --patch-file patch.yaml", _CLUSTER, _CHART),
    NotRun("kubectl apply -f proxy-conf.yaml", _CLUSTER, _CHART),
    NotRun("kubectl -n rocketmq patch deployment proxy --patch-file patch.yaml", _CLUSTER, _CHART),
    NotRun("helm upgrade --install sluice deploy/helm/sluice -n rabbitmq -f values.yaml", _CLUSTER, _CHART),
    NotRun("kubectl apply -f rabbitmq-conf.yaml", _CLUSTER, _CHART),
    NotRun(
        "helm template sluice deploy/helm/sluice -n rabbitmq -f values.yaml --set existing.patch=true"
        " --show-only templates/patch.yaml > patch.yaml",
        "it needs helm, which `make deploy` builds",
        _CHART,
    ),
    NotRun("kubectl -n rabbitmq patch statefulset rabbitmq --patch-file patch.yaml", _CLUSTER, _CHART),
    NotRun(
        "spark-submit --master spark://HOST:7077 --driver-memory 2g --executor-memory 3g"
        " --conf spark.sql.shuffle.partitions=64 --py-files sluice.zip deploy/spark/report.py /logs --out /report",
        "it needs a Spark cluster",
        "tests/spark/test_elsewhere.py",
    ),
    NotRun(".venv/bin/python tests/bench/run.py --quick", _MINUTES, "tests/bench/test_run.py"),
)
"""By exact text: each command of a page is run, or listed here."""
