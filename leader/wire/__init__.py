"""Generated code of what the leader election keeps in the metadata store."""
