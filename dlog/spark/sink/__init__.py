"""The sink of Spark: rows become records, each micro-batch is in its logs exactly once.

options, columns, encode    what a user says, which columns there are, rows as record batches
rows, staging, writers      a task: rows that travel in its message, or a ledger of its own
keeper                      the process that holds the open logs of an application
"""
