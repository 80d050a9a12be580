"""What browsers get as it is, and nothing in Python."""
