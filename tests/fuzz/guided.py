"""Fuzzes one parser with Atheris: `python -m tests.fuzz.guided TARGET [libFuzzer's options]`."""

import sys

import atheris

with atheris.instrument_imports(include=["bookie", "dlog", "leader", "ledger"]):
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.targets.schemas import SCHEMAS


def main() -> None:
    (target,) = (target for target in (*TARGETS, *SCHEMAS) if target.name == sys.argv[1])
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.try_with)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
