"""The command line: ``dlog`` for everything, ``bookie`` for a server alone."""

import sys

__all__ = ["bookie_main", "main"]


def main() -> None:
    """Run ``dlog``."""
    if sys.argv[1:] == ["--version"]:  # at once: commands and their library take longer
        print_version()
        return
    from dlog.cli.app import run

    run()


def bookie_main() -> None:
    """Run ``bookie``: the same as ``dlog bookie start``."""
    from dlog.cli.app import run_bookie

    run_bookie()


def print_version() -> None:
    """Print the versions of the package and of its formats, and what else is installed there."""
    import platform

    from dlog.installation import formats, other_dlog
    from ledger.process import DISTRIBUTION, own_version

    sys.stdout.write(f"{DISTRIBUTION} {own_version()} (Python {platform.python_version()})\n")
    versions = "; ".join(f"{name} {version}" for name, version in formats().items())
    sys.stdout.write(f"{versions}\n")
    if (other := other_dlog()) is not None:
        sys.stderr.write(f"beside it, and overwriting files of it: {other}, another project\n")
