"""`python -m benchmarks` measures logs; so do `.ledger`, `.bookie` and `.wire` what they say."""

from benchmarks.logs.__main__ import main

main()
