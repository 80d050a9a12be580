"""``python -m bookie``: one bookie in the foreground, until SIGTERM or SIGINT."""

import sys

from bookie.command import main

sys.exit(main())
