"""The commands of ``dlog log``."""
