"""Errors of the Spark connector.

CallerError
`- InvalidOption        an option or offset given by the user cannot be used
RemoteError
`- StreamBroken         the log no longer continues where the stream stopped
   |- LogReplaced       it was deleted and re-created under the same name
   `- RecordsTrimmed    it was truncated beyond the stream's position
"""

from ledger.errors import CallerError, RemoteError


class InvalidOption(CallerError):
    def __init__(self, option: str, value: str, reason: str) -> None:
        super().__init__(f"option {option}={value!r} of format dlog: {reason}")
        self.option, self.value = option, value


class StreamBroken(RemoteError):
    """Going on would skip or repeat records in silence, so the query fails instead."""


class LogReplaced(StreamBroken):
    def __init__(self, log: str, expected: str, found: str) -> None:
        super().__init__(
            f"log {log!r} was deleted and re-created (incarnation {expected} became {found}): the "
            "checkpoint points into a log that is gone; start the query with a new checkpoint"
        )
        self.log, self.expected, self.found = log, expected, found


class RecordsTrimmed(StreamBroken):
    def __init__(self, log: str, next_offset: int, first_offset: int) -> None:
        super().__init__(
            f"log {log!r} was truncated before offset {first_offset}, but the stream has read only "
            f"up to {next_offset}: {first_offset - next_offset} records are lost to it; start the "
            "query with a new checkpoint to go on without them"
        )
        self.log, self.next_offset, self.first_offset = log, next_offset, first_offset
