"""Losses of a bookie: what it counts of itself, and limbo."""
