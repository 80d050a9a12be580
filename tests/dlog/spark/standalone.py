"""A Spark cluster of processes on this machine: its local mode runs no task twice at a time.

A second attempt of a slow task runs on another host only, so each worker has an address of
the loopback network to itself.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dlog.local.java import find_java
from dlog.local.zookeeper import dying_with_parent
from tests.dlog.spark.sessions import environment
from tests.waiting import wait_until

WORKERS: Final = ("127.0.0.1", "127.0.0.2")
CORES: Final = 2
"""Of each worker."""
_START_S: Final = 60.0
_FLAGS: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_PACKAGES: Final = (
    "java.lang",
    "java.lang.invoke",
    "java.net",
    "java.nio",
    "java.util",
    "sun.nio.ch",
)


@contextmanager
def standalone(directory: Path, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a master and its workers, all files in *directory*; yield the URL of the master.

    With *variables* their environment is this one, else this process's with dlog on its path."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    started: list[subprocess.Popen[bytes]] = []
    base = {**os.environ, **environment()} if variables is None else variables
    # A worker asks for the version of Scala where it cannot see how Spark was installed.
    environ = {**base, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}

    def start(name: str, kind: str, *arguments: str) -> Path:
        java = [str(find_java().executable), *_FLAGS]
        java += [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _PACKAGES]
        command = [*java, "-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{kind}"]
        said = directory / f"{name}.log"
        with said.open("wb") as output:
            started.append(
                subprocess.Popen(
                    dying_with_parent([*command, *arguments], os.getpid()),
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        return said

    def is_said(file: Path, marked: str) -> bool:
        return marked in file.read_text(encoding="utf-8", errors="replace")

    directory.mkdir()
    try:
        host = WORKERS[0]
        said = start("master", "master.Master", "--host", host, "--port", "0", "--webui-port", "0")
        begins = "Starting Spark master at "
        wait_until(lambda: is_said(said, begins), "a master", timeout_s=_START_S)
        url = said.read_text(encoding="utf-8").partition(begins)[2].split()[0]
        for number, host in enumerate(WORKERS):
            start(
                f"worker{number}", "worker.Worker",
                "--host", host, "--port", "0", "--webui-port", "0",
                "--cores", str(CORES), "--memory", "1g",
                "--work-dir", str(directory / f"work{number}"), url,
            )  # fmt: skip
        wait_until(
            lambda: said.read_text(encoding="utf-8").count("Registering worker") == len(WORKERS),
            "workers",
            timeout_s=_START_S,
        )
        yield url
    finally:
        for process in started:
            process.terminate()  # a worker ends its executors
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_START_S)
            process.kill()
            process.wait()
