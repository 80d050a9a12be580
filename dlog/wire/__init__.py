"""Generated code of log.proto: what the metadata store holds about logs."""
