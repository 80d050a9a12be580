"""``python -m bookie``: one bookie in the foreground, until SIGTERM or SIGINT."""

from bookie.command import main

main()
