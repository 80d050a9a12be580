"""Alerts and dashboard in deploy: of metrics that are declared, and on a real Prometheus."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from dlog.local.cluster import LocalCluster
from ledger.metering.declaring import Kind
from tests.documents.metrics_page import DECLARED
from tests.waiting import PATIENCE_S, eventually, wait_until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "dlog.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dlog.json"
CASES = Path(__file__).parent / "dlog.rules.test.yml"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here (Debian: apt install prometheus)")
    return found


def test_alerts_name_metrics_that_are_declared() -> None:
    declared = {each.name: each for metrics in DECLARED.values() for each in metrics}
    named = set(re.findall(r"\bdlog_[a-z_]+", RULES.read_text(encoding="utf-8")))
    assert len(named) > 10
    for name in named:
        base = name.removesuffix("_bucket")
        assert base in declared, name
        assert (declared[base].kind is Kind.HISTOGRAM) == (base != name), name


def test_each_alert_says_what_to_do_and_is_tried() -> None:
    text = RULES.read_text(encoding="utf-8")
    names = re.findall(r"- alert: (\w+)", text)
    assert len(names) == text.count("action: ") == text.count("summary: ")
    for name in names:
        assert f'alertname="{name}"' in CASES.read_text(encoding="utf-8")


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_dashboard_shows_metrics_that_are_declared_as_what_they_are() -> None:
    declared = {each.name: each for metrics in DECLARED.values() for each in metrics}
    assert len(expressions()) > 30
    for expression in expressions():
        for name in re.findall(r"\bdlog_[a-z_]+", expression):
            metric = declared[name.removesuffix("_bucket")]
            assert (metric.kind is Kind.HISTOGRAM) == name.endswith("_bucket"), name
            if metric.kind is not Kind.GAUGE:
                assert f"rate({name}" in expression, f"{name} only grows"
            used = set(re.findall(rf"{name}{{(\w+)", expression))
            assert used <= {*metric.labels, "instance", "job"}, expression


def test_the_dashboard_is_laid_out_and_each_panel_says_what_it_shows() -> None:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
    assert {x for x, _ in taken} == set(range(24))


@pytest.mark.integration
def test_each_alert_fires_when_its_trouble_is_there_and_not_else(tmp_path: Path) -> None:
    for path in (RULES, CASES):
        shutil.copy(path, tmp_path)
    run = subprocess.run(
        [program("promtool"), "test", "rules", CASES.name],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """Run one that scrapes *targets* and knows our rules; yield the URL of its API."""
    (directory / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{json.dumps(str(RULES))}]\n"
        "scrape_configs:\n"
        f"  - {{job_name: dlog, static_configs: [{{targets: {json.dumps(targets)}}}]}}\n"
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


def asked(url: str) -> Any:
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)["data"]


@pytest.mark.integration
async def test_a_real_prometheus_scrapes_a_cluster_and_sees_a_bookie_go(tmp_path: Path) -> None:
    program("prometheus")
    places = ("127.0.0.1", 0)
    async with LocalCluster(tmp_path / "c", bookies=2, metrics=places) as cluster:
        targets = [
            address.removeprefix("http://").removesuffix("/metrics")
            for address in cluster.metrics.values()
        ]
        with prometheus(tmp_path, targets) as api:

            async def is_one(expression: str) -> bool:
                url = f"{api}/query?query={quote(expression)}"
                found = (await asyncio.to_thread(asked, url))["result"]
                return [each["value"][1] for each in found] == ["1"]

            both = "count(dlog_bookie_registered == 1) == bool 2"
            await eventually(partial(is_one, both), "it has what both bookies say")
            assert await is_one('min(up{job="dlog"})')
            (group,) = (await asyncio.to_thread(asked, f"{api}/rules"))["groups"]
            assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
            for expression in expressions():
                asking = quote(expression.replace("$__rate_interval", "1m"))
                await asyncio.to_thread(asked, f"{api}/query?query={asking}")
            cluster.kill_bookie(0)
            pending = 'count(ALERTS{alertname="DlogProcessDown"})'
            await eventually(partial(is_one, pending), "the alert is raised")
