"""Offline tools: look into a bookie's files while it is stopped, and repair what can be.

Everything here returns values and prints nothing; `dlog bookie` shows them to people and programs.
Only `format` and `rebuild` write, all others go through a disk that refuses it.
"""
