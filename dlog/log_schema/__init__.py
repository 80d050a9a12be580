"""Schemas of logs: what the payloads of records mean, as columns of Arrow.

A record stays bytes. A log may have a schema (`dlog.log_schema.value`), in versions, in the
metadata store; what reads payloads as columns, or makes payloads of columns, uses it. Each format
has a parser: `avro`, `json_schema`, `arrow_ipc`, `protobuf`. pyarrow and fastavro are imported when
a schema is used, and nothing here needs them before.
"""

from dlog.log_schema.columns import SchemaField
from dlog.log_schema.value import (
    DEFINITION_BYTES_MAX,
    FORMATS,
    SCHEMA_HEADER,
    VERSIONS_MAX,
    BadPayload,
    Decoded,
    LogSchema,
    LogSchemas,
    SchemaFormat,
    schemas_path,
    version_in,
)

__all__ = [
    "DEFINITION_BYTES_MAX",
    "FORMATS",
    "SCHEMA_HEADER",
    "VERSIONS_MAX",
    "BadPayload",
    "Decoded",
    "LogSchema",
    "LogSchemas",
    "SchemaField",
    "SchemaFormat",
    "schemas_path",
    "version_in",
]
