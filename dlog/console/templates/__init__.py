"""What the pages are made of, and nothing in Python."""
