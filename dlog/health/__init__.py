"""Is the cluster well? Facts are gathered, and signs of trouble are read from them.

signs       what a sign is, and a report of them
store, bookies, repair, logs    facts of one kind each, and what they are signs of; pure
survey      asks the metadata store and the bookies for these facts
checks      the list of checks: one more is one more line in it

The decisions need no cluster to be tried.
"""
