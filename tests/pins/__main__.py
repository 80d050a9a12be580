"""Writes `requirements/`: `python -m tests.pins [--upgrade]`.

All extras are resolved at once, for every Python from 3.11.0 on and every platform, so that the
files agree; versions that are there stay, unless they cannot or with --upgrade. Needs the extra
`audit` (uv).
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from tests.pins import DIRECTORY, FILES, ROOT, Pin, pins_in, pins_of

PYTHON: Final = "3.11.0"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pins", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="to the newest that fit together")
    arguments = parser.parse_args()
    DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        everything = Path(scratch, "all.txt")
        if not arguments.upgrade:
            known = [DIRECTORY / f"{file}.txt" for file in FILES]
            everything.write_text("\n".join(each.read_text() for each in known if each.is_file()))
        resolve("pyproject.toml", "-", "--all-extras", to=everything)
        written: dict[str, Pin] = {}
        for file, extras in FILES.items():
            options = [f"--extra={extra}" for extra in extras]
            options += [f"--no-emit-package={name}" for name in written]
            path = DIRECTORY / f"{file}.txt"
            path.unlink(missing_ok=True)
            source = "pyproject.toml" if extras else "-"
            resolve(source, *options, f"--constraint={everything}", to=path)
            written |= {pin.name: pin for pin in pins_of(file)}
            print(f"{path.relative_to(ROOT)}: {len(pins_of(file))} packages")
        missing = {pin.name for pin in pins_in(everything.read_text())} - written.keys()
    if missing:
        sys.exit(f"in no file, as their extras are in none of tests.pins.FILES: {sorted(missing)}")


def resolve(*sources_and_options: str, to: Path) -> None:
    """Write to *to* what is needed for `pyproject.toml`, or (-) to build it."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--universal", f"--python-version={PYTHON}"]
    command += ["--generate-hashes", "--no-annotate", "--custom-compile-command=make pins"]
    subprocess.run(
        [*command, *sources_and_options, f"--output-file={to}"],
        cwd=ROOT,
        check=True,
        input="\n".join(build),
        text=True,
    )


if __name__ == "__main__":
    main()
