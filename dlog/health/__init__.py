"""Is the cluster well? Facts are gathered, and findings of trouble are read from them.

findings       what a finding is, and a report of them
store, bookies, repair, logs    facts of one kind each, and what they are findings of; pure
survey      asks the metadata store and the bookies for these facts
checks      the list of checks: one more is one more line in it

The decisions need no cluster to be tried.
"""
