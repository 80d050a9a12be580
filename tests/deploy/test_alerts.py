"""Alerts and dashboard in deploy: of metrics that are declared, and on a real Prometheus."""

import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlog.local.cluster import LocalCluster
from ledger.metering.declaration import MetricKind
from tests.deploy.alerting import ROOT, RULES, alerts_of, asked, program, prometheus, queried
from tests.deploy.scenes import targets_of
from tests.documents.metrics_page import DECLARED
from tests.waiting import eventually

DASHBOARD = ROOT / "deploy" / "grafana" / "dlog.json"
CASES = Path(__file__).parent / "dlog.rules.test.yml"


def test_alerts_name_metrics_that_are_declared() -> None:
    declared = {each.name: each for metrics in DECLARED.values() for each in metrics}
    named = set(re.findall(r"\bdlog_[a-z_]+", RULES.read_text(encoding="utf-8")))
    assert len(named) > 10
    for name in named:
        base = name.removesuffix("_bucket")
        assert base in declared, name
        assert (declared[base].kind is MetricKind.HISTOGRAM) == (base != name), name


def test_each_alert_says_what_to_do_and_is_tried() -> None:
    text = RULES.read_text(encoding="utf-8")
    names = alerts_of(text)
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
            assert (metric.kind is MetricKind.HISTOGRAM) == name.endswith("_bucket"), name
            if metric.kind is not MetricKind.GAUGE:
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


@pytest.mark.integration
async def test_a_real_prometheus_scrapes_a_cluster_and_sees_a_bookie_go(tmp_path: Path) -> None:
    program("prometheus")
    places = ("127.0.0.1", 0)
    async with LocalCluster(tmp_path / "c", bookies=2, metrics=places) as cluster:
        with prometheus(tmp_path, targets_of(cluster)) as api:

            async def is_one(expression: str) -> bool:
                return [each["value"][1] for each in await queried(api, expression)] == ["1"]

            both = "count(dlog_bookie_registered == 1) == bool 2"
            await eventually(partial(is_one, both), "it has what both bookies say")
            assert await is_one('min(up{job="dlog"})')
            unread = 'count(dlog_bookie_reads_total{status="io_error"} == 0) == bool 2'
            assert await is_one(unread), "0 from the start: the first one is an increase"
            (group,) = (await asked(f"{api}/rules"))["groups"]
            assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
            for expression in expressions():
                await queried(api, expression.replace("$__rate_interval", "1m"))
            cluster.kill_bookie(0)
            pending = 'count(ALERTS{alertname="DlogProcessDown"})'
            await eventually(partial(is_one, pending), "the alert is raised")
