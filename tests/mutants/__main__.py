"""`python -m tests.mutants`: see `tests.mutants.mutation`."""

import sys

from tests.mutants.mutation import main

if __name__ == "__main__":
    sys.exit(main())
