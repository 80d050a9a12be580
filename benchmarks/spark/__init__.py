"""How fast Spark reads and writes logs, beside what it does with rows out of memory."""
