"""Real processes under real trouble: `make chaos`, on an ensemble of three ZooKeepers; with
--repair, `make chaos-repair`, bookies and their disks are lost, and repaired beside the load;
with --jepsen, `make chaos-jepsen`, power fails, bits flip, clocks jump; with --bank, `make
chaos-replica`, replicas of a bank are at work; with --kafka, `make chaos-kafka`, gateways under
Kafka's clients; with --record the run is written down for `make
linearizable`.

Call: python -m tests.integration.chaos [--repair | --tls | --jepsen | --bank [--bug NAME]
                                        | --kafka [--bug NAME] [--no-java]]
                                        [--record FILE] [--seconds 600] [--seed 1]
                                        [--zookeepers 3|1|0] [--only NEMESIS ...]
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from dlog.local.errors import JavaMissing, ZooKeeperMissing
from tests.integration.chaos.bank_stage import BankStage
from tests.integration.chaos.jepsen_stage import JepsenStage
from tests.integration.chaos.kafka_stage import KafkaStage, java_clients
from tests.integration.chaos.places import Places, entering
from tests.integration.chaos.recording import RecordedStage
from tests.integration.chaos.repair_stage import HELPER_OPTIONS, RepairStage
from tests.integration.chaos.stage import Plan, Stage

_PR_SET_PDEATHSIG: Final = 1
_INSIDE: Final = "DLOG_TEST_CHAOS_INSIDE"
"""Tells the second start, in the namespace, whose child it is; and why there is none."""
SESSION_TIMEOUT_S: Final = "4"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--zookeepers", type=int, choices=(0, 1, 3), default=3)
    parser.add_argument("--bookies", type=int)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--repair", action="store_true")
    kinds.add_argument("--tls", action="store_true")
    kinds.add_argument("--jepsen", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], help="nemeses, of --jepsen")
    kinds.add_argument("--bank", action="store_true")
    kinds.add_argument("--kafka", action="store_true")
    parser.add_argument("--no-java", action="store_true", help="no clients of Java, of --kafka")
    parser.add_argument("--bug", default="", help="a mutation, of --bank and --kafka")
    parser.add_argument("--record", type=Path, help="add its operations to this file")
    return parser.parse_args()


def _stage(options: argparse.Namespace) -> Callable[[Plan, Path, Places, str], Stage]:
    if options.jepsen:
        return JepsenStage
    if options.bank:
        return partial(BankStage, bug=options.bug)
    if options.kafka:
        missing = "" if options.no_java else java_clients()
        if missing:
            print(f"no clients of Java: {missing}")
        return partial(KafkaStage, bug=options.bug, java=not (options.no_java or missing))
    if options.record is not None:
        return RecordedStage
    return RepairStage if options.repair else Stage


def main() -> int:
    options = _options()
    parent = os.environ.get(_INSIDE)
    why_not_apart = "not asked for"
    if parent is None and not options.repair:
        command, why_not_apart = entering()
        if command:
            os.environ[_INSIDE] = str(os.getppid())
            module = [sys.executable, "-m", "tests.integration.chaos", *sys.argv[1:]]
            os.execvp(command[0], [*command, *module])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != int(parent):
        return 1
    os.environ["DLOG_SESSION_TIMEOUT_S"] = SESSION_TIMEOUT_S
    os.environ.pop("DLOG_BOOKIE_TIMEOUT_S", None)  # bookies that stand still are noticed as usual
    repairs = options.repair or options.jepsen
    plan = Plan(
        seconds=options.seconds,
        seed=options.seed,
        zookeepers=options.zookeepers,
        bookies=options.bookies or (5 if repairs else 4),
        helpers=2 if repairs else 0,
        helper_options=HELPER_OPTIONS if repairs else (),
        truncates=options.record is None and not options.jepsen,
        roll_age_s=10.0 if options.jepsen else 1.0,
        nemeses=tuple(options.only),
        tls=options.tls,
    )
    kind = _stage(options)
    with tempfile.TemporaryDirectory(prefix="dlog-chaos-", ignore_cleanup_errors=True) as directory:
        stage = kind(plan, Path(directory), Places(apart=parent is not None), why_not_apart)
        try:
            asyncio.run(stage.run())
        except (JavaMissing, ZooKeeperMissing) as error:
            print(f"skipped: {error}")
            return 5
        lines: Iterable[str] = ()
        if isinstance(stage, RecordedStage):
            lines = (each.line(f"chaos-{options.seed}") for each in stage.operations)
        elif isinstance(stage, BankStage):
            lines = stage.bank.lines(f"bank-{options.seed}", stage.end)
        if options.record is not None:
            with options.record.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
