"""A small authority, to try TLS out and for small clusters; needs the extra `dlog-ledgers[tls]`."""
