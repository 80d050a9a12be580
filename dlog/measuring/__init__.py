"""Measurements of `dlog perf standby`: ends leaders, and times how soon a warm standby appends."""

from enum import StrEnum


class How(StrEnum):
    """How a leader is ended."""

    KILL = "kill"
    RESIGN = "resign"
