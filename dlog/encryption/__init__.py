"""Encryption of what logs hold: wrapping keys, which a process is given, and the data keys of
ledgers, which they wrap. `dlog.envelope` has what is encrypted, and how."""
