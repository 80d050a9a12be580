"""``python -m dlog.cli`` is ``dlog``."""

from dlog.cli import main

main()
