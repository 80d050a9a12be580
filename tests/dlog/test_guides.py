"""The examples of the guides beside docs/guide.md, each document's run one after the other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import TEST_S

DOCS = Path(__file__).parents[2] / "docs"

RUNNER = """
import os, sys
from dlog.testing import cluster

with cluster() as made:
    os.environ["DLOG_URI"] = made.uri
    exec(compile(sys.stdin.read(), sys.argv[1], "exec"), {"__name__": "guide"})
print("done")
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("guide", "asserts_min"),
    [
        ("index.md", 1),
        ("keeping.md", 12),
        ("ledgers.md", 8),
        ("reading.md", 8),
        pytest.param("schemas.md", 2, marks=pytest.mark.spark),  # it needs pyarrow
        ("web.md", 6),
        ("writing.md", 7),
    ],
)
def test_the_examples_of_the_guide_do_what_they_say(guide: str, asserts_min: int) -> None:
    text = (DOCS / guide).read_text()
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert code.count("assert") >= asserts_min
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, guide],
        input=code,
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
