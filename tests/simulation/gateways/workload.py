"""The scenario of gateways: several that register, lead a log by the rule and coordinate a group.

Each is a process with the production code of membership, led logs and groups. They crash, pause and
are cut off at any call; their sessions end while they live, and their lifelines tell that they
died. Idempotent producers and consumers of the log find who leads it; the members of a group find
its coordinator, join, are assigned partitions, commit. Below are the bookies, network, metadata
store and faults of the scenario of logs. Safety is checked after every step. Once nothing is wrong
any more, one gateway leads, each batch is answered, and all members are in one generation and
commit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.store import ManifestNode
from dlog.kafka import offsets_log as offsets_logs
from dlog.kafka.coordinator import offsets_log
from dlog.kafka.protocol import consumer_group
from dlog.protocol.gateway_record import GATEWAYS_PATH, GatewayRecord
from ledger.errors import LogError
from tests.simulation.gateways.coverage import REQUIRED_OF_GATEWAYS
from tests.simulation.gateways.gateway import RegisteredGateway
from tests.simulation.gateways.group import (
    GROUP,
    INVARIANTS,
    PARTITIONS,
    GroupConsumer,
    GroupOracle,
)
from tests.simulation.invariants import check as check_ledgers
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.kernel.invariants import InvariantError
from tests.simulation.logs.faults import Doom
from tests.simulation.logs.invariants import check
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import MANY_MACHINES, ONE_MACHINE, STRANGERS, LogProfile
from tests.simulation.partitions.workload import LOG, PartitionSimulation
from tests.simulation.partitions.workload import draw as draw_partitions

GATEWAYS: Final = 3
GATEWAYS_MAX: Final = 14
MEMBERS: Final = 3
MEMBERS_MAX: Final = 9
FIRST_PORT: Final = 9092
REST_S: Final = 5.0
"""For so long at the end nobody takes a log over any more."""
RESTS_MAX: Final = 4
"""A session that faults have ended is found out late."""
OFFSETS: Final = offsets_log(GROUP)
LIVING_STAY: Final = "no_gateway_deletes_the_node_of_a_living_one"
NOT_OF_GATEWAYS: Final = frozenset({"trimmed_records_are_not_needed"})
"""A log of offsets is truncated behind its snapshot, which nobody of the world asked for."""


def draw(random: Random) -> LogProfile:
    profile = draw_partitions(random)
    return replace(
        profile,
        lifelines=random.choice((ONE_MACHINE, MANY_MACHINES, STRANGERS)),
        readers=random.choice((0, 1)),
        sweeps=0,
        truncates=0.0,
        fates=random.choice((("lives", "crashes"), ("lives", "pauses", "crashes"), ("pauses",))),
        fate_calls=random.choice(((40,), (150,), (400,))),
    )


class GatewaySimulation(PartitionSimulation):
    name = "gateways"
    required = REQUIRED_OF_GATEWAYS
    invariants: ClassVar = {
        **PartitionSimulation.invariants,
        **INVARIANTS,
        LIVING_STAY: "the node of a gateway goes with its session, by itself, or once it is dead",
    }

    def __init__(
        self,
        seed: int,
        *,
        profile: LogProfile | None = None,
        changes: Changes = UNCHANGED,
        keep_trace: bool = False,
    ) -> None:
        profile = profile or draw(Random(seed))
        super().__init__(seed, profile=profile, changes=changes, keep_trace=keep_trace)
        self.group = GroupOracle()
        self._registered: list[RegisteredGateway] = []
        self._members: list[GroupConsumer] = []
        self._nodes: dict[str, tuple[str, int]] = {}
        """Process and port of the lifeline of each registered gateway, by path."""
        self._deposed = ""
        self._snapshot_bytes = self._random.choice((300, 3000, 10**6))
        self.world.metadata.on_report = self._node_changed

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        sizes = (
            (offsets_logs, "SNAPSHOT_BYTES_MIN", self._snapshot_bytes),
            (consumer_group, "SESSION_MS_MIN", 100),
        )
        before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
        for module, name, size in sizes:
            setattr(module, name, size)
        try:
            with super()._surroundings():
                yield
        finally:
            for module, name, size in before:
                setattr(module, name, size)

    def _run(self) -> None:
        profile = self.profile
        self.scheduler.note("world", f"{profile}")
        self._must("make the log", self._make_log)
        self._must("make the log of offsets", self._make_offsets_log)
        self._faults.begin()
        for number in range(GATEWAYS):
            self._start_gateway(FIRST_PORT + number)
        for _ in range(MEMBERS):
            self._start_member()
        faults_s = profile.floor.faults_s
        until_s = self.scheduler.now + faults_s
        for _ in range(profile.readers):
            self._while_faulty(self._random.uniform(0.0, faults_s), partial(self._begin_tail, LOG))
        for _ in range(self._random.choice((0, 2, 4))):
            self._while_faulty(self._random.uniform(0.0, faults_s), self._change_members)
        self._step_until(until_s)
        self._faults.heal()
        self._healed = True
        self._finish()

    async def _make_offsets_log(self, process: Process) -> bool:
        node = ManifestNode(process.store, OFFSETS)
        try:
            await ensure_log(process.ledgers, node, self.profile.settings, own=True)
        except LogError:
            return False
        return True

    def _start_gateway(self, port: int) -> None:
        process = self.world.process("gateway")
        gateway = RegisteredGateway(
            process, port, LOG, self.profile, self.partitions, self._producers
        )
        self._registered.append(gateway)
        process.on_call = Doom(
            process,
            self._random.choice(self.profile.fates),
            1 + self._random.randrange(self._random.choice(self.profile.fate_calls)),
            self._port(),
            opening=lambda: gateway.opening,
            between=lambda: gateway.partition is not None,
            on_crash=partial(self._start_again, port),
        )
        process.run(gateway.run())

    def _start_again(self, port: int, _process: Process) -> None:
        if len(self._registered) < GATEWAYS_MAX:
            delay_s = self._random.uniform(0.1, 1.0)
            self._while_faulty(delay_s, partial(self._start_gateway, port))

    def _start_member(self) -> None:
        process = self.world.process("member")
        member = GroupConsumer(process, self._registered, self.group)
        self._members.append(member)
        process.run(member.run())

    def _change_members(self) -> None:
        """A member leaves, or its process dies, and another one starts."""
        living = [each for each in self._members if each.process.host.up and not each.leaving]
        if living and self._random.random() < 0.8:
            member = self._random.choice(living)
            member.leaving = True
            if self._random.random() < 0.6:
                member.process.crash()
                self.scheduler.mark("member_crashed")
        if len(self._members) < MEMBERS_MAX:
            self._start_member()

    # The end.

    def _finish(self) -> None:
        self._step_until(self.scheduler.now + 1.0)
        if not any(gateway.process.host.up for gateway in self._registered):
            self._start_gateway(FIRST_PORT)
        for gateway in self._registered:
            gateway.process.on_call = None
            gateway.stopping = True
        if not self._living():
            self._start_member()
        since = self.scheduler.now
        for _ in range(RESTS_MAX):
            self._step_until_idle("it does not come to rest", partial(self._unrest, since))
            epochs = self._epochs()
            self._step_until(self.scheduler.now + REST_S)
            if self._epochs() == epochs:
                return
        raise self._error(f"logs are taken over again and again, in epochs {self._epochs()} by now")

    def _epochs(self) -> list[int]:
        return [self.world.logs.current[name].manifest.epoch for name in (LOG, OFFSETS)]

    def _living(self) -> list[GroupConsumer]:
        return [each for each in self._members if each.process.host.up and not each.leaving]

    def _unrest(self, since: float) -> list[str]:
        """Return what is not yet as it has to be, with all that lives."""
        producers = [each.producer_id for each in self._producers if each.pending]
        unrest = [f"producer {each} has no answer" for each in producers]
        up = [each for each in self._registered if each.process.host.up]
        leaders = {
            None if each.membership is None else each.membership.view.leader_of(LOG) for each in up
        }
        if len(leaders) != 1 or None in leaders:
            unrest.append(f"the views differ: {leaders}")
        if sum(each.leads_now for each in up) != 1:
            unrest.append(f"{[each.process.name for each in up if each.leads_now]} lead")
        members = self._living()
        settled = [each.settled for each in members]
        generations = {each[0] for each in settled if each is not None}
        shares = [partition for each in settled if each is not None for partition in each[1]]
        if None in settled or len(generations) != 1 or sorted(shares) != list(range(PARTITIONS)):
            unrest.append(f"the group has {settled}")
        unrest += [
            f"{each.process.name} commits nothing"
            for each in members
            if each.settled is not None and each.settled[1] and each.committed_at <= since
        ]
        return unrest

    # Safety.

    def _node_changed(self, path: str, by: str) -> None:
        if not path.startswith(f"{GATEWAYS_PATH}/"):
            return
        tree = self.world.metadata.tree
        if tree.exists(path) is not None:
            owner = tree.owner(path)
            gateway = GatewayRecord.decode(tree.get(path).value, path=path)
            if owner is not None and gateway.lifeline is not None:
                self._nodes[path] = owner.rpartition("/")[0], gateway.lifeline.port
            return
        name, port = self._nodes.pop(path, ("", 0))
        if by in {"", name}:
            return
        process = next((each for each in self.world.processes if each.name == name), None)
        if process is not None and process.host.up and process.sockets.listens(port):
            self._deposed = f"{by} deleted the node of {name}, which lives"
        else:
            self.scheduler.mark("death_noticed")

    def _check(self) -> None:
        if self._deposed:
            raise InvariantError(LIVING_STAY, "gateways", self._deposed)
        history = self.world.logs.current.get(LOG)
        if history is not None and history.incarnation in self.world.logs.changed:
            self.partitions.check(history)
        check(self.world.logs, without=NOT_OF_GATEWAYS)
        check_ledgers(self.world.oracle)
