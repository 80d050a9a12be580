"""The metrics of elections in this process."""

from typing import Final

from ledger.metering.declaring import Declarations

METRICS: Final[Declarations[None]] = Declarations()

TERMS: Final = METRICS.tally("dlog_leader_terms_total", "Elections that were won.")
