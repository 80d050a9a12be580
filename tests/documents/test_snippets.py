"""Programs in documents are run by the tests named here, and commands in guides below."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from dlog import Log
from dlog.cli.app import app
from dlog.testing import cluster
from docs.site.pages import DOCS

ROOT: Final = DOCS.parent
PROGRAMS: Final = {
    "README.md": "tests/examples/test_readme.py",
    "docs/guide.md": "tests/dlog/test_guide.py",
    "docs/index.md": "tests/dlog/test_guides.py",
    "docs/kafka.md": "tests/dlog/test_testing_kafka.py",
    "docs/keeping.md": "tests/dlog/test_guides.py",
    "docs/ledgers.md": "tests/dlog/test_guides.py",
    "docs/reading.md": "tests/dlog/test_guides.py",
    "docs/spark.md": "tests/dlog/spark/test_spark_guide.py",
    "docs/schemas.md": "tests/dlog/test_guides.py",
    "docs/tutorial.md": "tests/dlog/test_tutorial.py",
    "docs/web.md": "tests/dlog/test_guides.py",
    "docs/writing.md": "tests/dlog/test_guides.py",
}
"""Documents with programs, and the tests that run those."""

GUIDES: Final = ("cli", "metrics", "operations", "security")
"""Documents whose commands are run here, one after the other, as those of the README are."""

ENDS: Final = ("access", "bookie list", "completion", "doctor", "log", "status", "tls")
"""Commands that are run: they end soon, and need nothing but a cluster. Others go on until they are
stopped, wait, or take a machine for themselves; their own tests start them."""


def documents() -> dict[str, str]:
    paths = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of what *text* shows to be typed at a shell and begins with dlog."""
    before, _, day = text.partition("\n## The operator's day\n")  # tests/integration runs that
    text = before + "".join(re.split(r"\n(?=## )", day)[1:])
    for block in re.findall(r"```sh\n(.*?)```|((?:^    .*\n)+)", text, re.DOTALL | re.MULTILINE):
        for line in "".join(block).replace("\\\n", " ").splitlines():
            if line.strip().startswith("dlog "):
                yield shlex.split(line.partition(" > ")[0], comments=True)[1:]


def is_run_here(words: list[str]) -> bool:
    """Not what goes on, follows, waits, or names servers that are not there."""
    line = " ".join(words)
    return line.startswith(ENDS) and "zk://" not in line and not {"-f", "--wait"} & {*words}


def test_every_document_with_programs_has_a_test_that_runs_them() -> None:
    for path, text in documents().items():
        assert (path in PROGRAMS) == ("\n```python\n" in text), path
    for path, test in PROGRAMS.items():
        if path not in ("README.md", "docs/testing.md"):
            assert Path(path).name in (ROOT / test).read_text(), (path, test)


def test_the_commands_of_all_documents_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        (path, words)
        for path in ("README.md", *(f"docs/{name}.md" for name in GUIDES))
        for words in command_lines(documents()[path])
        if is_run_here(words)
    ]
    assert len(lines) > 12
    monkeypatch.chdir(tmp_path)
    with cluster() as made:
        monkeypatch.setenv("DLOG_URI", made.uri)
        for name in ("flights", "orders"):
            with Log.open(name) as log:
                log.append_many([b"record"] * 1001)
        for path, words in lines:
            is_there = words == ["log", "create", "orders"]
            result = CliRunner().invoke(app, words)
            assert result.exit_code == is_there, (path, words, result.output, result.exception)
