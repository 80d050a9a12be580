"""Templates of the pages, and nothing in Python."""
