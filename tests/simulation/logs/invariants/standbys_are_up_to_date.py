"""Who is promoted has applied every record up to the end of the log that it opened."""

from tests.simulation.logs.oracle import LogHistory

_NAME = "standbys_are_up_to_date"


def broken(history: LogHistory) -> str | None:
    for promotion in history.new(_NAME, history.promotions):
        opened = next(each for each in reversed(history.opens) if each.epoch == promotion.epoch)
        if promotion.applied != opened.next_offset:
            return (
                f"{promotion.who} serves from epoch {promotion.epoch} on having applied "
                f"{promotion.applied} records of {opened.next_offset}"
            )
    return None
