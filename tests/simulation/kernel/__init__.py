"""What every simulator stands on, whatever its workload is.

| module | owns |
|---|---|
| scheduler | simulated time, the one source of randomness, which drawn faults happen, the trace |
| host | a machine that crashes, is paused and wakes up |
| network | delay, loss, duplication, partitions; datagrams, calls, streams |
| loop, sockets, ambient | an asyncio loop on a host, on which production drivers run unchanged |
| simulation | one seed, step by step: what a workload overrides |
| invariants | the table of a package of invariants, and their check |
| seeds | the command line: many seeds, coverage, progress |
| shrinking | the smallest run that still breaks the same invariant |
| story | that run as a person tells it |

A workload is a subclass of `simulation.Simulation`, entered in `tests.simulation.workloads`.
"""
