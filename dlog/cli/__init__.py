"""The command line: ``dlog`` for everything, ``bookie`` for a server alone."""

from dlog.cli.app import bookie_main, main

__all__ = ["bookie_main", "main"]
