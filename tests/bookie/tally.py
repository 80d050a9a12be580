"""What the tests of this package tried, counted; told at the end of a run."""

from collections import Counter

tally: Counter[str] = Counter()
