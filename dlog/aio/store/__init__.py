"""What logs keep in the metadata store."""
