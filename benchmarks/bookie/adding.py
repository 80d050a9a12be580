"""Throughput and latency of adds."""

from benchmarks.bookie.bench import LABELS, Bench, OneBookie, one_bookie
from benchmarks.bookie.load import RUN_BYTES, Pump, Pumped, add_times
from benchmarks.ledger import PATIENT, adds
from benchmarks.runs import runs_of
from ledger import LedgerClient, Quorum

_IN_FLIGHT = (1, 16, 256)
_MADE_BEFOREHAND_BYTES_MAX = 500_000_000


async def throughput(bench: Bench) -> None:
    """Add entries of each size as fast as the bookie takes them."""
    for size, label in LABELS.items():
        with bench.place() as place:
            async with one_bookie(place) as bookie:
                pumped = await _pump(bench, bookie, size)
        name = f"adds of {label}"
        bench.rate(name, pumped.bytes_per_s, aim_r=0.7 if size == 64_000 else None)
        if size == 100:
            bench.at_least(f"{name}, entries", pumped.entries_per_s, "/s", 200_000)
        else:
            bench.note(f"{name}, entries", pumped.entries_per_s, "/s")
        bench.note(f"{name}, runs told to come later", pumped.refused, "")


async def _pump(bench: Bench, bookie: OneBookie, size: int) -> Pumped:
    count = bench.sizes.entries[size]
    runs = runs_of(size, size, count, run_bytes=RUN_BYTES)
    if count * size < _MADE_BEFOREHAND_BYTES_MAX:
        runs = iter(list(runs))  # where making them would be most of the client's work
    return await Pump(bookie.transport).all(runs, payload_bytes=size)


async def client_throughput(bench: Bench) -> None:
    """The same through a whole ledger client, on a ledger of one bookie."""
    with bench.place() as place:
        async with one_bookie(place) as bookie:
            client = await LedgerClient.connect(bookie.cluster.uri, PATIENT)
            try:
                await client.bookies.wait_for(1, 60)
                for size, label in LABELS.items():
                    rate = await adds(client, size, bench.sizes.seconds, Quorum(1, 1, 1))
                    bench.rate(f"adds of {label} by a ledger client", rate * size)
                    bench.note(f"adds of {label} by a ledger client, entries", rate, "/s")
            finally:
                await client.close()


async def latency(bench: Bench) -> None:
    with bench.place() as place:
        async with one_bookie(place) as bookie:
            ledger_id = 1
            await add_times(bookie.transport, ledger_id, 100, 1, bench.sizes.seconds / 4)
            for size, label in LABELS.items():
                for in_flight in _IN_FLIGHT:
                    ledger_id += 1
                    times = await add_times(
                        bookie.transport, ledger_id, size, in_flight, bench.sizes.seconds
                    )
                    aim_f = 3.0 if in_flight == 1 else None
                    bench.latency(f"add of {label}, {in_flight} in flight", times, aim_f=aim_f)
