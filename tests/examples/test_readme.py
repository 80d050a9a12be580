"""What the README shows first, works."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_program_is_ten_lines_of_code() -> None:
    lines = [line for line in first_program().splitlines() if line.strip()]
    assert len(lines) <= 10


def test_every_linked_file_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.integration
def test_the_first_program_prints_what_it_appended(tmp_path: Path) -> None:
    async def scenario() -> str:
        async with LocalCluster(tmp_path / "cluster") as cluster:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                first_program(),
                cwd=ROOT,
                env={**os.environ, "DLOG_URI": cluster.uri},
                stdout=subprocess.PIPE,
            )
            async with asyncio.timeout(100.0):
                out, _ = await process.communicate()
            assert process.returncode == 0
            return out.decode()

    printed = asyncio.run(scenario())
    for offset, word in enumerate(("hello", "replicated", "world")):
        assert f"{offset} b'{word}'" in printed


def first_program() -> str:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)
