"""The examples of docs/reading.md, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "reading.md"

RUNNER = """
import os, sys
from dlog.testing import cluster

with cluster() as made:
    os.environ["DLOG_URI"] = made.uri
    exec(compile(sys.stdin.read(), "docs/reading.md", "exec"), {"__name__": "guide"})
print("done")
"""


def test_the_examples_of_the_guide_do_what_they_say() -> None:
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    assert code.count("assert") >= 8
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=code,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
