"""The process that holds the logs which one Spark application writes.

Spark's workers come and go, and none of them belongs to a query, while a log that is taken over
begins a segment. So one small process for each driver and namespace holds what is open: it is
started by the first worker that needs it, found by the others through a socket, and ends with the
driver. It may be killed at any time: the next call starts another, which goes on in the same epoch.

    ownership           which run may write a log: decisions
    frames              what travels between worker and keeper
    holding             the logs that are open
    server, client      both ends of the socket; the client starts the keeper
    place, leftovers    where the socket is, and whose driver this is; what dead ones left there
"""
