"""The file that is made: what was gathered, within a bound, and what could not be had."""

import gzip
import io
import json
import os
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dlog.cli.bundling.redaction import Redactor
from ledger.values import counted

BYTES_MAX: Final = 64 << 20
"""Of everything in it, before it is packed."""
_MODE: Final = 0o600


@dataclass(slots=True)
class Bundle:
    """Everything comes in through the redactor."""

    redactor: Redactor
    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be had, and why."""
    left_bytes: int = BYTES_MAX

    def add_text(self, name: str, text: str, *, opaque: bool = False) -> None:
        """Take *text*, or say that there is no room for it."""
        self._add(name, self.redactor.text(text, opaque=opaque))

    def add_json(self, name: str, value: object) -> None:
        self._add(name, f"{json.dumps(self.redactor.value(value), indent=2, default=str)}\n")

    def miss(self, what: str, why: str) -> None:
        """Say why *what* is not there."""
        self.missing[self.redactor.text(what)] = self.redactor.text(why)

    def _add(self, name: str, text: str) -> None:
        content = text.encode(errors="replace")
        if len(content) > self.left_bytes:
            why = f"too large: {counted(len(content), 'byte')}, and {self.left_bytes} were left"
            self.miss(name, f"{why} of the {BYTES_MAX} that a bundle holds")
            return
        self.left_bytes -= len(content)
        self.files[name] = content

    def write(self, path: Path) -> int:
        """Write the bundle to *path*, which must not exist; return its size in bytes."""
        said = "".join(f"{what}: {' '.join(why.split())}\n" for what, why in self.missing.items())
        files = {
            "MANIFEST.json": self._manifest(),
            "MISSING.txt": (said or "nothing: all was had\n").encode(errors="replace"),
            **self.files,
        }
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with (
                os.fdopen(made, "wb") as file,
                gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                for name, content in files.items():
                    entry = tarfile.TarInfo(f"dlog-debug/{name}")
                    entry.size, entry.mode, entry.mtime = len(content), _MODE, int(time.time())
                    tar.addfile(entry, io.BytesIO(content))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path.stat().st_size

    def _manifest(self) -> bytes:
        facts = {
            "format": 1,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": {name: len(content) for name, content in self.files.items()},
            "missing": len(self.missing),
        }
        return f"{json.dumps(facts, indent=2)}\n".encode()
