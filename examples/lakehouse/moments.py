"""Where a streaming query stands, from its checkpoint; and the moments at which to kill it.

Spark writes `offsets/N` when batch N is begun, and `commits/N` when it is done. In between, the
sink has got the batch, or not: after a crash Spark cannot know, and runs it again.
"""

import enum
import json
from pathlib import Path


class Moment(enum.Enum):
    BETWEEN = "between two batches"
    BEGUN = "right after a batch was begun"
    WRITTEN = "when a batch was in the log, and Spark had not noted it"


class Checkpoint:
    """The checkpoint of one query that reads one log."""

    def __init__(self, directory: Path) -> None:
        self._offsets, self._commits = directory / "offsets", directory / "commits"

    def begun(self) -> int:
        """Return the number of the newest batch that was begun; -1 before the first."""
        return _newest(self._offsets)

    def done(self) -> int:
        """Return the number of the newest batch that is done; -1 before the first."""
        return _newest(self._commits)

    def position(self, log: str) -> int:
        """Return the offset that the batches which are done end before."""
        done = self.done()
        if done < 0:
            return 0
        _version, _settings, source = (
            (self._offsets / str(done)).read_text(encoding="utf-8").splitlines()
        )
        end: int = json.loads(source)["logs"][log][1]
        return end


class Watch:
    """Says whether a moment is now; it has to be asked again and again."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._batch = -1
        self._windows = 0
        """How many the log held when that batch was first seen."""

    def now(self, moment: Moment, windows: int) -> bool:
        """*windows*: how many the log is known to hold. The query goes on while this is looked
        at: only of one that is stopped the answer stays true."""
        begun = self._checkpoint.begun()
        if begun != self._batch:
            self._batch, self._windows = begun, windows
        going = self._checkpoint.done() < begun
        match moment:
            case Moment.BETWEEN:
                return not going
            case Moment.BEGUN:
                return going
            case Moment.WRITTEN:
                return going and windows > self._windows


def _newest(directory: Path) -> int:
    if not directory.is_dir():
        return -1
    return max((int(each.name) for each in directory.iterdir() if each.name.isdigit()), default=-1)
