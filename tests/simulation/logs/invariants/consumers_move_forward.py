"""A named consumer's position never moves back, and only over records that it was given.

Or that were trimmed; or somebody asked for it to begin again there, in an epoch of its own. Its
epoch never falls; in an epoch of an exclusive one a single process commits, and none of an epoch
that was over when it began to.
"""

from itertools import pairwise

from tests.simulation.logs.oracle import ConsumerHistory, LogHistory

_NAME = "consumers_move_forward"


def broken(history: LogHistory) -> str | None:
    for incarnation, consumer in history.consumers.items():
        key = f"{_NAME} {incarnation}"
        first = max(1, history.checked.get(key, 1))
        history.checked[key] = len(consumer.states)
        for before, after in pairwise(consumer.states[first - 1 :]):
            if after.epoch > before.epoch and history.requests.resets_to(
                history.incarnation, consumer.name, after.position
            ):
                continue
            if after.position < before.position or after.epoch < before.epoch:
                return f"{consumer.name} went from {before} to {after}"
            for offset in range(before.position, after.position):
                trimmed = offset < history.manifest.trim_offset
                if offset not in consumer.delivered and not trimmed:
                    return f"{consumer.name} committed {offset}, which nobody was given"
        story = _shared(history, key, consumer)
        if story is not None:
            return story
    return None


def _shared(history: LogHistory, key: str, consumer: ConsumerHistory) -> str | None:
    exclusive = {state.epoch for state in consumer.states if state.exclusive}
    for who, epoch, began_in in history.new(f"{key} commits", consumer.committed):
        if epoch < began_in:
            return f"{who} of epoch {epoch} committed to {consumer.name} in epoch {began_in}"
        others = [other for other, at, _ in consumer.committed if at == epoch and other != who]
        if others and epoch in exclusive:
            return f"{who} and {others[0]} both committed in epoch {epoch} of {consumer.name}"
    return None
