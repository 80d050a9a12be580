"""Errors of the collector.

CallerError
`- CollectionUnderWay      a run was asked for while another one is under way
"""

from ledger.errors import CallerError


class CollectionUnderWay(CallerError):
    retryable = True

    def __init__(self, running: str) -> None:
        super().__init__(f"a run is under way already ({running}); wait for its end")
        self.running = running
