"""A real Prometheus that scrapes processes of a test and knows our rules, and sharper rules."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.waiting import PATIENCE_S, wait_until

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "dlog.rules.yml"
JOB: Final = "dlog"

_KEPT: Final = (
    *("#", "groups:", "- name:", "rules:", "- alert:"),
    *("labels:", "annotations:", "summary:", "action:"),
)
_RANGE: Final = "5s"
_RANGES: Final = frozenset({"5m", "10m", "1h"})
_COMPARISONS: Final = {
    "== 0": "== 0",
    "== 1": "== 1",
    "> 0": "> 0",
    ">= 0": ">= 0",
    "> 0.1": "> 0.1",
    "< 0.10": "< 0.10",
    "< 14 * 86400": "< 14 * 86400",
    "> 300": "> 1",  # seconds that a reader is behind
    "> 3600": "> 0",  # seconds that a segment waits for object storage
    "> 1800": "> 10",  # seconds since an archiver's pass without an error
}
"""Each that is in the rules, and what a test waits for instead."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here (Debian: apt install prometheus)")
    return found


def alerts_of(rules: str) -> list[str]:
    """Return the names of the alerts."""
    return re.findall(r"- alert: (\w+)", rules)


def sharpened(rules: str) -> str:
    """Return *rules* with alerts that fire at once, of what the last seconds were like.

    Raises `ValueError` for a range, comparison or line that nobody has thought about."""
    return "".join(map(_sharpened_line, rules.splitlines(keepends=True)))


def _sharpened_line(line: str) -> str:
    words = line.strip()
    if words.startswith("for:"):
        return ""
    if not words or words.startswith(_KEPT):
        return line
    if not words.startswith("expr:") and "dlog_" not in words:
        raise ValueError(f"not a line that alerts are made of here: {words}")
    line = re.sub(r"\[(.*?)]", _sharpened_range, line)
    return re.sub(r"(?:[<>]=?|[=!]=) .*?(?= and | or |\)|$)", _sharpened_comparison, line)


def _sharpened_range(found: re.Match[str]) -> str:
    if found[1] not in _RANGES:
        raise ValueError(f"nobody has said how much shorter [{found[1]}] is in a test")
    return f"[{_RANGE}]"


def _sharpened_comparison(found: re.Match[str]) -> str:
    if found[0] not in _COMPARISONS:
        raise ValueError(f"nobody has said what '{found[0]}' is in a test")
    return _COMPARISONS[found[0]]


@contextmanager
def prometheus(
    directory: Path, targets: Sequence[str], *, rules: Path = RULES, every: str = "1s"
) -> Iterator[str]:
    """Run one that scrapes *targets*, and looks at *rules*, each *every*; yield its API's URL."""
    (directory / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {every}, scrape_timeout: {every}, "
        f"evaluation_interval: {every}}}\n"
        f"rule_files: [{json.dumps(str(rules))}]\n"
        "scrape_configs:\n"
        f"  - {{job_name: {JOB}, static_configs: [{{targets: {json.dumps([*targets])}}}]}}\n"
    )
    command = [
        program("prometheus"),
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = directory / "prometheus.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            base = f"http://{_address(log)}"
            wait_until(partial(_is_ready, base), "it answers questions")
            yield f"{base}/api/v1"
        finally:
            process.kill()


def _address(log: Path) -> str:
    pattern = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:\d+)')
    wait_until(lambda: pattern.search(log.read_text()) is not None, "it listens")
    found = pattern.search(log.read_text())
    assert found is not None
    return found[1]


def _is_ready(base: str) -> bool:
    """Return whether its storage is open: it listens earlier, and then answers with 503."""
    try:
        with urlopen(f"{base}/-/ready", timeout=PATIENCE_S):
            return True
    except URLError:
        return False


async def asked(url: str) -> Any:
    return await asyncio.to_thread(_asked, url)


async def queried(api: str, expression: str) -> list[Any]:
    """Return what the expression is now, as samples."""
    return list((await asked(f"{api}/query?query={quote(expression)}"))["result"])


def _asked(url: str) -> Any:
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)["data"]
