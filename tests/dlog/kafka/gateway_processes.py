"""Gateways as processes of their own, which a test may kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.waiting import wait_until


@dataclass
class GatewayProcess:
    process: "subprocess.Popen[str]"
    bootstrap: str

    def kill(self) -> None:
        """As `kill -9`: nothing is closed, nobody is told."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> str:
        """End it in order; return what it said."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate()
        return said


@contextmanager
def gateway_process(uri: str, *options: str, **environment: str) -> Iterator[GatewayProcess]:
    command = [sys.executable, "-m", "dlog.cli", "kafka", "start", "--json"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", *options],
        env={**os.environ, "DLOG_URI": uri, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield GatewayProcess(process, json.loads(line)["bootstrap"])
    finally:
        process.kill()
        process.communicate()


def gone(process: GatewayProcess) -> None:
    wait_until(lambda: process.process.poll() is not None, "the gateway ends")
