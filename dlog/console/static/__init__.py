"""Files that browsers get as they are, and nothing in Python."""
