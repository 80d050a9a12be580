"""What is known against what is pinned, and of what the product consists: `python -m tests.audit`.

Writes `build/sbom.json` (CycloneDX), of the distribution with all extras that users may ask for;
then asks about everything in `requirements/`, what developers use, too. Ends with 1 if something
is vulnerable, with 2 if there was no advice to be had. Needs the extra `audit`.
"""

import json
import subprocess
import sys
from typing import Any, Final

from packaging.markers import Marker

from tests.audit import Verdict, lacks, of_the_product, verdict
from tests.pins import DIRECTORY, FILES, ROOT, pins_of

SBOM: Final = ROOT / "build" / "sbom.json"
PRODUCT: Final = ("product", "spark")
ASKING_S: Final = 300.0


def main() -> int:
    made = sbom()
    SBOM.parent.mkdir(exist_ok=True)
    SBOM.write_text(json.dumps(made, indent=2) + "\n")
    print(f"{SBOM.relative_to(ROOT)}: {len(made['components'])} components, CycloneDX 1.6")
    found = advice()
    print(*found.lines, sep="\n", file=sys.stderr if found.code else sys.stdout)
    return found.code


def sbom() -> dict[str, Any]:
    """Return the SBOM of the product, by what is installed beside this Python."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject=pyproject.toml"]
    command += ["--mc-type=library", "--spec-version=1.6", "--output-reproducible", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cyclonedx-py failed: {done.stderr[-2000:]}")
    pins = [pin for file in PRODUCT for pin in pins_of(file)]
    made = of_the_product(json.loads(done.stdout), pins)
    here = [pin for pin in pins if not pin.marker or Marker(pin.marker).evaluate()]
    if missing := lacks(made, here):
        sys.exit(f"not installed as pinned: {', '.join(missing)}. Run make distclean venv.")
    return made


def advice() -> Verdict:
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off"]
    command += ["--disable-pip", "--require-hashes"]
    command += [f"--requirement={DIRECTORY / file}.txt" for file in FILES]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=ASKING_S
        )
    except subprocess.TimeoutExpired:
        return verdict(None, f"there was no answer in {ASKING_S:g} s")
    try:
        return verdict(json.loads(done.stdout))
    except ValueError:
        return verdict(None, done.stderr)


if __name__ == "__main__":
    sys.exit(main())
