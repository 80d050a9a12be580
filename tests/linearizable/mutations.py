"""Known bugs that the checker has to find in histories of simulated logs, without the simulator's
invariants.

They are mutations of the simulator of logs. Each breaks what a client is told in another way: an
end that is stale, a record that is lost, doubled or moved, one that was refused and is there, a
compare-and-append at another place, a writer that goes on after a takeover.
"""

from dataclasses import dataclass
from typing import Final

from tests.linearizable.checker import Verdict, judge
from tests.linearizable.simulation import simulate
from tests.simulation.mutations import put_back

SEEDS_MAX: Final = 200

BUGS: Final = {
    "takes_the_last_add_confirmed_for_a_barrier": "a stale end",
    "acknowledges_what_it_has_only_sent": "a lost append",
    "takes_the_next_offset_from_the_lac": "a lost append, by a takeover",
    "reopens_by_sending_again_what_the_log_has": "a double append",
    "calls_refused_what_it_has_sent": "a refused append that is there",
    "looks_at_the_expected_offset_of_the_first_record_only": "a compare-and-append elsewhere",
    "swaps_before_it_recovers": "a takeover at another end",
    "fences_only_the_last_ledger": "a writer that was taken over",
}
"""What each does, by the name of the mutation."""


@dataclass(frozen=True, slots=True)
class Found:
    seed: int
    verdict: Verdict


def find(name: str, seeds_max: int = SEEDS_MAX) -> Found | None:
    """Run seeds with the bug *name* until a history is not linearizable."""
    for seed in range(seeds_max):
        with put_back(name):
            lines, _ = simulate(seed)
        for verdict in judge(lines):
            if verdict.result == "Illegal":
                return Found(seed, verdict)
    return None
