"""Repair: finds ledgers that lack copies, and makes the copies again, in a process of its own."""
