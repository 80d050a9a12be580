"""Everything that runs a whole cluster on one machine: Java, ZooKeeper, bookies."""
