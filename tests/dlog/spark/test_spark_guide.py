"""The guide to Spark: its examples do what they say, and its tables name what there is."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dlog.spark.errors import SOURCE as KNOWN
from dlog.spark.options import SourceOptions
from dlog.spark.sink.options import KNOWN as KNOWN_OF_SINK

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(360)]

PATH = Path(__file__).parents[3] / "docs" / "spark.md"
GUIDE = PATH.read_text(encoding="utf-8")


def code() -> str:
    """Return the examples, every line where it stands in the guide."""
    inside, lines = False, []
    for line in GUIDE.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
        lines.append(line if inside and not line.startswith("```") else "")
    return "\n".join(lines)


def test_the_examples_do_what_they_say(
    spark: SparkSession, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code().count("assert") >= 9
    monkeypatch.setenv("DLOG_URI", uri)
    # The processes of Spark have the environment of when the session began.
    examples = code().replace('format("dlog")', f'format("dlog").option("uri", "{uri}")')
    examples = examples.replace("OPTIONS (", f"OPTIONS (uri '{uri}', ")
    names = {"__name__": "guide", "spark": spark, "directory": str(tmp_path)}
    try:
        exec(compile(examples, str(PATH), "exec"), names)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.sql("DROP TABLE IF EXISTS orders")


def test_every_option_is_in_a_table() -> None:
    cells = re.findall(r"^\| ([^|]*) \|", GUIDE, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert [name for name in KNOWN if name not in named] == []
    assert KNOWN_OF_SINK - {name.lower() for name in named} == set()


@pytest.mark.parametrize(
    ("option", "default"),
    re.findall(r"^\| `(\w+)` \| `?([\w]+)`?(?:,[^|]*)? \|", GUIDE, re.MULTILINE),
)
def test_every_default_is_the_one_that_the_table_says(option: str, default: str) -> None:
    if default in {"DLOG_URI", "no", "none"} or option not in KNOWN:
        return
    given = {"logs": "a", option: default}
    if option == "maxTriggerDelay":
        given["minRecordsPerTrigger"] = "5"
    if option == "mode":
        given["payload"] = "schema"
    plain = {name: value for name, value in given.items() if name != option}
    said, is_so = SourceOptions.parse(given), SourceOptions.parse(plain)
    for name in SourceOptions.__dataclass_fields__:
        if name not in {"ending_is_given", "records_per_trigger_min", "tasks_max"}:
            assert getattr(said, name) == getattr(is_so, name), name


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", GUIDE)
    assert [target for target in targets if not (PATH.parent / target).exists()] == []
    headings = re.findall(r"^##+ (.*)$", GUIDE, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
    assert set(re.findall(r"\]\(#([^)]+)\)", GUIDE)) <= set(anchors)
