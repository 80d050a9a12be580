"""Each alert fires on real processes, scraped by a real Prometheus, when its trouble is made."""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.alerting import RULES, alerts_of, program, sharpened
from tests.deploy.scenes import SCENES, Stage

ASKED_FOR: Final = "DLOG_TEST_ALERTS"


def test_each_alert_has_a_scene() -> None:
    assert sorted(alerts_of(RULES.read_text(encoding="utf-8"))) == sorted(SCENES)


def test_sharper_rules_fire_at_once_of_what_the_last_seconds_were_like() -> None:
    text = RULES.read_text(encoding="utf-8")
    rules = sharpened(text)
    assert alerts_of(rules) == alerts_of(text)
    assert "for:" not in rules
    assert text.count("[") == rules.count("[5s]")
    assert text.count("> 300") == rules.count("> 1\n") == 1
    changed = [
        (before, after)
        for before, after in zip(
            (line for line in text.splitlines() if "for: " not in line),
            rules.splitlines(),
            strict=True,
        )
        if before != after
    ]
    assert len(changed) == 9


@pytest.mark.parametrize(
    "line", ["expr: dlog_x > 7", "expr: rate(dlog_x[3m]) > 0", "expr: dlog_x < bool 3", "limit: 3"]
)
def test_a_form_that_nobody_has_thought_about_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"nobody has said|not a line"):
        sharpened(f"groups:\n        {line}\n")


@pytest.mark.integration
@pytest.mark.parametrize("alert", SCENES)
async def test_an_alert_fires_when_its_trouble_is_made(alert: str, tmp_path: Path) -> None:
    if not os.environ.get(ASKED_FOR):
        pytest.skip(f"scenes of real processes, one for each alert: {ASKED_FOR}=1 or make alerts")
    program("prometheus")
    rules = tmp_path / "sharper.rules.yml"
    rules.write_text(sharpened(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    await SCENES[alert](Stage(alert, tmp_path, rules))
