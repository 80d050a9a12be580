"""A small authority, for trying TLS out and for small clusters; needs the extra `dlog-ledgers[tls]`."""
