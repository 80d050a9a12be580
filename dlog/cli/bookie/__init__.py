"""The commands of ``dlog bookie``."""
