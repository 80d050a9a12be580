"""Requests of clients and operators, from the wire to the storage."""
