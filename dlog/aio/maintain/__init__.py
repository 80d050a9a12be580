"""Looking after logs: trim, seal, rename, verify, audit; how they begin and end."""
