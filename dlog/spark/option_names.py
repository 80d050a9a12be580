"""The options of source and sink, as users write them: Spark hands them over in lower case."""

from typing import Final

TLS: Final = ("tls", "tlsCa", "tlsCert", "tlsKey", "tlsIdentity")
"""Of both: the settings of the same names."""
SOURCE: Final = (
    "logs",
    "logsPattern",
    "path",
    "uri",
    *TLS,
    "startingOffsets",
    "startingTimestamp",
    "startingTxid",
    "endingOffsets",
    "endingTimestamp",
    "endingTxid",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxPartitions",
    "minTaskRecords",
    "maxBytesPerTask",
    "failOnDataLoss",
    "consumer",
    "pushdown",
    "timestampsAscend",
    "pollMs",
    "includeHeaders",
    "columns",
)
SINK: Final = (
    "path",
    "log",
    "logs",
    "uri",
    *TLS,
    "inlineBytesMax",
    "createLogs",
    "writeId",
    "writeNumber",
)
_WRITTEN: Final = {name.lower(): name for name in (*SOURCE, *SINK)}


def as_written(option: str) -> str:
    """Return *option* as the documents write it; one that does not exist, as it was given."""
    return _WRITTEN.get(option.lower(), option)
