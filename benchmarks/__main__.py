"""`python -m benchmarks` measures ledgers and logs; `benchmarks.wire` is for the wire alone."""

from benchmarks.ledger import run

run()
