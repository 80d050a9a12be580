"""Runs seeds: `python -m tests.simulation --seed 7`; see `tests.simulation.kernel.seeds`."""

import sys

from tests.simulation.kernel import seeds
from tests.simulation.workloads import WORKLOADS


def main(arguments: list[str] | None = None) -> int:
    return seeds.main(WORKLOADS, arguments)


if __name__ == "__main__":
    sys.exit(main())
