"""A real Spark cluster on loopback, for tests: a standalone master and its workers, stopped with the block."""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from harness.ports import free_port
from harness.process import ManagedProcess

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What is to do is done before Java has compiled its best."""
SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
PATIENCE_S = 540.0
EXECUTOR_MEMORY = "640m"

SETTINGS = (
    f"spark.executor.memory={EXECUTOR_MEMORY}",
    "spark.cores.max=2",
    "spark.executor.cores=1",
    f"spark.driver.host={LOOPBACK}",
    f"spark.driver.bindAddress={LOOPBACK}",
    "spark.sql.shuffle.partitions=4",
    f"spark.driver.extraJavaOptions={_JAVA}",
    f"spark.executor.extraJavaOptions={_JAVA}",
)
"""What a job on it needs."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    url: str
    web: str
    environment: dict[str, str]

    def state(self) -> Any:
        """Return what the master says of itself: workers, and applications that ran."""
        with urllib.request.urlopen(f"{self.web}/json/", timeout=30) as answer:
            return json.load(answer)


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and its workers, each with a core, and wait until they know each other."""
    environment = {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        # No settings of this machine's own.
        "SPARK_CONF_DIR": str(folder),
    }
    (folder / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    port, web = free_port(), free_port()
    url = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        # The workers end before the master: it would wait for them.
        master = stack.enter_context(
            ManagedProcess(
                "Spark master",
                [
                    *(spark_class, "org.apache.spark.deploy.master.Master"),
                    *("--host", LOOPBACK, "--port", str(port), "--webui-port", str(web)),
                ],
                log=folder / "master.log",
                env=environment,
            )
        )
        master.wait_for_line("New state: ALIVE", timeout_s=PATIENCE_S)
        for number in range(workers):
            own = free_port()
            stack.enter_context(
                ManagedProcess(
                    f"Spark worker {number}",
                    [
                        *(spark_class, "org.apache.spark.deploy.worker.Worker"),
                        *("--host", LOOPBACK, "--port", str(own), "--webui-port", str(free_port())),
                        *("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"), url),
                    ],
                    log=folder / f"worker-{number}.log",
                    env=environment,
                )
            )
            master.wait_for_line(f"Registering worker {LOOPBACK}:{own}", timeout_s=PATIENCE_S)
        yield Cluster(url, f"http://{LOOPBACK}:{web}", {**os.environ, **environment})


_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
