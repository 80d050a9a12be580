"""Bookies that are away before anybody begins: what a small cluster has to live with."""

from functools import partial
from random import Random
from typing import Final

from tests.simulation.bookie import SimBookie
from tests.simulation.cluster import Cluster
from tests.simulation.metadata import SESSION_S

REGISTERED_S: Final = 1.0
"""After so long all bookies are registered."""
GONE_S: Final = REGISTERED_S + SESSION_S + 1.0
"""And after so long those that were sent away then are not any more."""


def send_away(cluster: Cluster, random: Random, count: int, *, back_s: float) -> None:
    """Take down *count* bookies after `REGISTERED_S`; they come back some time between `GONE_S` and
    *back_s* later, or when everything heals."""

    def go() -> None:
        for bookie in random.sample(list(cluster.bookies.values()), count):
            if bookie.host.up:
                bookie.crash()
            later_s = GONE_S - REGISTERED_S + random.uniform(0.0, back_s)
            cluster.scheduler.after(later_s, partial(_start, bookie))

    cluster.scheduler.after(REGISTERED_S, go)


def _start(bookie: SimBookie) -> None:
    if not bookie.host.up:
        bookie.restart()
