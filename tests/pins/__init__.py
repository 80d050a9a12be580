"""The files of `requirements/`: what is installed, at which version, with which hashes.

Every package stands in one file only: in the first of `FILES` whose extras lead to it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DIRECTORY: Final = ROOT / "requirements"
FILES: Final[dict[str, tuple[str, ...]]] = {
    "build": (),
    "product": ("tls", "console", "encryption", "otel", "kafka", "archive"),
    "spark": ("spark", "demo", "table", "schema"),
    "dev": ("dev", "connect"),
    "docs": ("docs",),
    "peers": ("peers",),
    "fuzz": ("fuzz",),
    "audit": ("audit",),
}
"""The extras that each is for. `build` is what builds the project; what is
needed without any extra is in `product`."""


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def pins_in(text: str) -> list[Pin]:
    found = []
    for each in re.split(r"\n(?=\S)", text):
        matched = re.match(
            r"([\w.-]+)(?:\[[\w,.-]+\])?==([^\s;]+)(?: ; ([^\\\n]+?))?(?: \\|$)", each
        )
        if matched:
            name, version, marker = matched.groups()
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", each))
            found.append(Pin(name, version, marker or "", hashes))
    return found


def pins_of(file: str) -> list[Pin]:
    return pins_in((DIRECTORY / f"{file}.txt").read_text())
