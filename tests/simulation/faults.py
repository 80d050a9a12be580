"""What goes wrong, and how it ends: crashes, pauses, partitions, storms.

Each fault picks its victim when it strikes and ends some time later, at the latest in `heal`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from bookie.entrylog.format import DIRECTORY as ENTRY_LOGS
from ledger.entry import ENTRIES_AHEAD_MAX, encode_frame
from ledger.ids import BookieId, BookieIdentity, LedgerId
from ledger.requests import AddRun
from tests.simulation.bookie import JOURNAL_END, NEWEST_JOURNAL, SimBookie
from tests.simulation.cluster import Cluster
from tests.simulation.disk import SimDisk
from tests.simulation.disks_elsewhere import cookie_of, known, retire_name, start_copy
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Action
from tests.simulation.profile import Profile

_ACTS: Final = (
    ("index/redo", ("sync", "index/0")),
    ("journal", ("rename", "journal/mark")),
)
"""Files that a start believes, and where it acts upon what it has read there."""
PUT_BACK: Final = 0.5
"""How probably one index file is brought back instead of a whole disk."""
JOURNAL_LOOKS: Final = 100
JOURNAL_LOOK_S: Final = 0.05
"""How often it is looked for a journal file to lose."""


class Faults:
    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self._cluster = cluster
        self._scheduler = cluster.scheduler
        self._random = cluster.scheduler.random
        self._profile = profile
        self._healed = False

    def begin(self) -> None:
        """Set the weather and schedule the faults of the profile."""
        self._cluster.network.weather = self._profile.weather
        self._cluster.on_new_bookie = self._watch
        for bookie in self._cluster.bookies.values():
            self._watch(bookie)
        for _ in range(self._profile.disks_lost):
            at_s = self._random.uniform(0.0, self._profile.faults_s)
            ways = [self._lose_disk, self._rot_disk, self._back_up]
            ways += [self._lose_files, self._lose_journal, self._lose_journal]
            fault = self._random.choice(ways)
            if fault == self._lose_journal:
                at_s *= 0.1  # it waits for adds that are still to come
            self._plan(at_s, fault)
        kinds: list[Callable[[], None]] = []
        if self._profile.crashes:
            kinds += [self._crash_bookie, self._crash_at_work, self._crash_at_work, self._crash_all]
            kinds += [self._crash_twice, self._crash_twice]
        if self._profile.disk_errors:
            kinds += [self._fail_sync, self._fail_read, self._fill_disk]
            kinds += [self._go_bad, self._go_bad]
        if self._profile.pauses:
            kinds += [self._pause_bookie, self._pause_metadata]
        if self._profile.partitions:
            kinds += [self._isolate, self._cut_one_way, self._cut_one_way]
        if self._profile.resets:
            kinds += [self._reset_connections]
        if self._profile.forgeries:
            kinds += [self._forge]
        if self._profile.moves:
            kinds += [self._move, self._start_copy]
        for _ in range(self._profile.strangers):
            at_s = self._random.uniform(
                0.0, self._random.choice((0.3, 1.0)) * self._profile.faults_s
            )
            self._plan(at_s, self._let_stranger_listen)
        if not kinds:
            return
        for _ in range(self._profile.faults):
            at_s = self._random.uniform(0.0, self._profile.faults_s)
            self._plan(at_s, self._random.choice(kinds))

    def heal(self) -> None:
        """End everything that is wrong, for good."""
        self._healed = True
        self._scheduler.note("world", "heals")
        self._cluster.network.heal()
        for name in list(self._cluster.foreign):
            self._leave(name)
        for bookie in list(self._cluster.bookies.values()):
            bookie.disk.heal()
            damaged = bookie.name in self._cluster.oracle.lost_disks and not bookie.knows_its_loss
            if damaged and not bookie.gone:
                bookie.retire()
            if not bookie.host.up:
                bookie.restart()
        for host in self._cluster.hosts:
            if host.paused and not host.asleep:
                host.resume()

    def _plan(self, at_s: float, fault: Action) -> None:
        if self._scheduler.faults.happens():
            self._scheduler.after(at_s, partial(self._strike, fault))

    def _strike(self, fault: Action) -> None:
        if not self._healed:
            fault()

    def _later(self, at_most_s: float, action: Action) -> None:
        self._scheduler.after(self._random.uniform(0.01, at_most_s), partial(self._strike, action))

    def _promised(self, bookie: SimBookie) -> None:
        if self._healed or not self._scheduler.chance(self._profile.crash_after_promise):
            return
        if self._scheduler.faults.happens():
            life = bookie.host.life
            self._scheduler.after(
                self._random.uniform(0.0, 0.003), partial(self._crash_life, bookie, life)
            )

    def _crash_life(self, bookie: SimBookie, life: int) -> None:
        if not self._healed and bookie.host.up and bookie.host.life == life:
            bookie.crash()
            self._restart_soon(bookie)

    def _restart_soon(self, bookie: SimBookie) -> None:
        """Also after healing: who went down by itself comes back."""
        self._scheduler.after(self._random.uniform(0.01, 1.0), partial(self._restart, bookie))

    def _restart(self, bookie: SimBookie) -> None:
        if bookie.host.up:
            return
        if self._profile.crashes and not self._healed and self._scheduler.chance(0.1):
            bookie.disk.crash_at = bookie.disk.operations + self._random.randrange(1, 20)
        bookie.restart()

    def _watch(self, bookie: SimBookie) -> None:
        bookie.on_promise = self._promised
        bookie.on_down = self._restart_soon

    def _lose_disk(self) -> None:
        """Never more of them than Qa - 1 in a world: that is what Qa promises."""
        bookie = self._random.choice(self._bookies())
        bookie.lose_disk()
        if self._scheduler.chance(0.5):
            retire_name(self._cluster, bookie.name, partial(self._restart_soon, bookie))
        else:
            self._restart_soon(bookie)

    def _back_up(self) -> None:
        """A backup is made of a disk; a little later it is brought back, or an index file of it: a
        lost disk, too."""
        bookie = self._random.choice(self._bookies())
        backup = bookie.disk.copy()
        self._later(3.0, partial(self._bring_back, bookie, backup))

    def _bring_back(self, bookie: SimBookie, backup: SimDisk) -> None:
        stored = known(self._cluster, bookie.name)
        if bookie.gone or stored is None or stored.clean:
            return  # nothing was promised since, as far as that is known here
        changed = bookie.indexes_unlike(backup)
        if changed and self._scheduler.chance(PUT_BACK):
            bookie.put_back(self._random.choice(changed), backup)
        else:
            bookie.restore(backup)
        self._restart_soon(bookie)

    def _move(self) -> None:
        bookie = self._random.choice(self._bookies())
        if bookie.serves and not bookie.host.paused:
            bookie.host.after(0.0, partial(bookie.move, partial(self._restart_soon, bookie)))

    def _start_copy(self) -> None:
        """Somebody copies the files of a bookie and starts another process on them."""
        bookie = self._random.choice(self._bookies())
        copy = bookie.disk.copy(by_files=True)
        here, stored = cookie_of(copy), known(self._cluster, bookie.name)
        if here is not None and stored is not None and (bookie.serves or not here.clean):
            self._later(1.0, partial(start_copy, bookie, self._cluster, copy))

    def _rot_disk(self) -> None:
        """One byte of one file changes; counted like a lost disk."""
        bookie = self._random.choice(self._bookies())
        files = [path for path in bookie.disk.files() if bookie.disk.content(path)]
        if files:
            folder = self._random.choice(sorted({path.split("/")[0] for path in files}))
            path = self._random.choice([p for p in files if p.startswith(folder)])
            if bookie.journal in files and self._scheduler.chance(0.5):
                path = bookie.journal  # nothing else knows what was promised last
            bookie.rot(path)
            if bookie.host.up and self._scheduler.chance(0.5):
                bookie.crash()
                self._restart_soon(bookie)

    def _lose_files(self) -> None:
        """Some files of one bookie are gone, or shorter; counted like a lost disk."""
        serving = [bookie for bookie in self._bookies() if bookie.serves]
        if serving:
            bookie = self._random.choice(serving)
            bookie.lose_files()
            self._restart_soon(bookie)

    def _lose_journal(self) -> None:
        """The newest journal file of one bookie is gone, or shorter, and its commits with it."""
        way = self._random.choice((NEWEST_JOURNAL, JOURNAL_END))
        self._lose_journal_of(self._random.choice(self._bookies()), way, JOURNAL_LOOKS)

    def _lose_journal_of(self, bookie: SimBookie, way: str, looks: int) -> None:
        """It makes no checkpoint until there are such commits, or *looks* are over."""
        if bookie.serves and (not looks or bookie.would_miss(way)):
            bookie.lose_files(way)
            self._restart_soon(bookie)
        elif looks:
            bookie.plan_checkpoint(2 * JOURNAL_LOOK_S)
            again = partial(self._lose_journal_of, bookie, way, looks - 1)
            self._scheduler.after(JOURNAL_LOOK_S, partial(self._strike, again))

    def _fill_disk(self) -> None:
        """The disk of a bookie is full for a while."""
        bookie = self._random.choice(self._bookies())
        bookie.disk.capacity_bytes = bookie.disk.used_bytes() + self._random.randrange(4096)
        self._scheduler.mark("disk_full")
        self._later(2.0, partial(_give_space, bookie))

    def _reset_connections(self) -> None:
        """Several connections break, one after the other, while adds wait on them."""
        for _ in range(self._random.randrange(1, 20)):
            self._later(2.0, self._reset_connection)

    def _reset_connection(self) -> None:
        writers, recoverers = self._cluster.writers, self._cluster.recoverers
        streams = [stream for client in writers for stream in client.busy_streams()]
        streams += [stream for client in recoverers for stream in client.busy_streams()]
        if streams:
            self._random.choice(streams).reset()
            self._scheduler.mark("connection_reset")

    def _forge(self) -> None:
        """A client out of its mind sends other bytes under an id that is taken, and an id that no
        writer can have come to.

        Only where the bookie has its copy still: nobody can distinguish what it
        lost from what is sent."""
        bookie = self._random.choice(self._bookies())
        for ledger_id, history in self._cluster.oracle.ledgers.items():
            key = history.recorded.access_key
            taken = [entry for entry, held in history.copies.items() if bookie.name in held]
            if taken and bookie.serves and not bookie.host.paused:
                entry = self._random.choice(taken)
                ids = [entry] if bookie.can_read(ledger_id, key, entry) else []
                for entry_id in (*ids, 1 + ENTRIES_AHEAD_MAX):
                    forged = _forged(ledger_id, entry_id, key)
                    bookie.add(forged, 0, _ignore)
                self._scheduler.mark("add_forged")

    def _bookies(self) -> list[SimBookie]:
        return [bookie for bookie in self._cluster.bookies.values() if not bookie.gone]

    def _crash_bookie(self) -> None:
        bookie = self._random.choice(self._bookies())
        if bookie.host.up:
            end = self._random.choice((bookie.crash, bookie.crash, bookie.kill))
            end()
            self._later(4.0, partial(self._restart, bookie))

    def _let_stranger_listen(self) -> None:
        """A bookie of the same name takes the address of one of ours, which is down then, or stands
        still. It is of another cluster; or of a copy of this cluster that is one of its own now; or
        of this one, with other data, where somebody emptied a directory and forced the name, or in
        an earlier life, a process that runs on although another one has its data."""
        bookie = self._random.choice(self._bookies())
        cookie = known(self._cluster, bookie.name)
        if cookie is None or bookie.name in self._cluster.foreign:
            return  # it has been nowhere
        if bookie.host.up and not bookie.host.paused:
            bookie.crash()
            self._later(4.0, partial(self._restart, bookie))
        ours = BookieIdentity(cookie.instance, cookie.cookie, cookie.life)
        strangers = (
            BookieIdentity("foreign", "foreign", cookie.life),
            replace(ours, instance="copied"),
            replace(ours, identity="emptied"),
            replace(ours, life=cookie.life - 1),
        )
        self._cluster.listen(bookie.name, self._random.choice(strangers))
        self._later(6.0, partial(self._leave, bookie.name))

    def _leave(self, name: BookieId) -> None:
        foreign = self._cluster.foreign.pop(name, None)
        if foreign is not None:
            foreign.host.crash()

    def _crash_at_work(self) -> None:
        """The power fails in the middle of what the bookie writes next."""
        bookie = self._random.choice(self._bookies())
        if bookie.host.up:
            if self._scheduler.chance(0.5):
                bookie.disk.crash_before("sync", "journal")
            else:
                bookie.disk.crash_at = bookie.disk.operations + self._random.randrange(1, 12)

    def _crash_twice(self) -> None:
        """The process is killed with something written and not synced, or by a sync that failed;
        the power fails as the next one acts upon it."""
        bookie = self._random.choice(self._bookies())
        if not bookie.serves:
            return
        file, act = self._random.choice(_ACTS)
        bookie.crash_at_start = act
        if self._scheduler.chance(0.5):
            bookie.disk.fail("sync", file)
        else:
            bookie.disk.crash_before("sync", file)

    def _fail_sync(self) -> None:
        """Most syncs are the journal's; the others are a checkpoint's."""
        bookie = self._random.choice(self._bookies())
        bookie.disk.fail("sync", self._random.choice(("", "journal")))

    def _fail_read(self) -> None:
        bookie = self._random.choice(self._bookies())
        if bookie.serves:
            bookie.disk.fail("read")

    def _go_bad(self) -> None:
        """Entry logs cannot be read for a while."""
        bookie = self._random.choice(self._bookies())
        if bookie.serves:
            self._unreadable(bookie)

    def _unreadable(self, bookie: SimBookie) -> None:
        bookie.disk.go_bad("read", ENTRY_LOGS)
        self._scheduler.mark("disk_unreadable")
        self._later(4.0, bookie.disk.heal_bad)

    def spoil(self, ledger_id: LedgerId) -> None:
        """Let a bookie of the ledger that is being recovered move all it has to entry logs, and
        be unable to read them: it does not know whether it has what recovery writes back."""
        if not self._profile.disk_errors or not self._scheduler.chance(0.4):
            return
        fragment = self._cluster.oracle.ledgers[ledger_id].recorded.last_fragment
        bookie = self._cluster.bookies[self._random.choice(fragment.bookies)]
        if bookie.serves and not bookie.host.paused:
            bookie.plan_checkpoint(self._random.uniform(0.0, 0.005))
            self._unreadable(bookie)

    def _crash_all(self) -> None:
        """The power fails for all bookies at once."""
        for bookie in self._cluster.bookies.values():
            if bookie.host.up:
                bookie.crash()
                self._later(1.0, partial(self._restart, bookie))

    def _pause_bookie(self) -> None:
        bookie = self._random.choice(self._bookies())
        self._pause(bookie.host, 6.0)

    def _pause_metadata(self) -> None:
        self._pause(self._cluster.metadata.host, 3.0)
        self._scheduler.mark("metadata_outage")

    def _pause(self, host: Host, at_most_s: float) -> None:
        if host.up and not host.paused:
            host.pause()
            self._scheduler.mark("host_paused")
            self._later(at_most_s, partial(_resume, host))

    def _isolate(self) -> None:
        victim = self._random.choice(self._cluster.hosts)
        self._scheduler.note("network", f"isolates {victim.name}")
        self._scheduler.mark("host_isolated")
        pairs = [
            pair
            for host in self._cluster.hosts
            if host is not victim
            for pair in ((host.name, victim.name), (victim.name, host.name))
        ]
        self._cut(pairs)

    def _cut_one_way(self) -> None:
        source, target = self._random.sample(self._cluster.hosts, 2)
        self._scheduler.note("network", f"loses what {source.name} sends to {target.name}")
        self._scheduler.mark("one_way_partition")
        self._cut([(source.name, target.name)])

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            self._cluster.network.cut(source, target)
            mend = partial(self._cluster.network.mend, source, target)
            self._later(5.0, mend)


def _forged(ledger_id: LedgerId, entry_id: int, key: bytes) -> AddRun:
    frame = encode_frame(
        ledger_id=ledger_id, entry_id=entry_id, last_add_confirmed=-1, length=0, payload=b"forged"
    )
    return AddRun(ledger_id, key, [entry_id], [len(frame)], frame, recovery=True)


def _ignore(_status: object) -> None:
    """Nobody listens to the answer."""


def _give_space(bookie: SimBookie) -> None:
    bookie.disk.capacity_bytes = None


def _resume(host: Host) -> None:
    if host.paused:
        host.resume()
