"""Decisions of repair: who is lost, which ledgers lack a copy, what is copied where. Pure."""
