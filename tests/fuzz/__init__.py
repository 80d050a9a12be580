"""Whatever parses bytes that came from outside, fed with bytes that nobody expected."""
