"""Golden transcripts: the protocol's main stories, event by event, as text that people read.

After a change that is meant, `make transcripts` writes them anew. Commit only a difference
that you can explain.
"""

from pathlib import Path

import pytest

from tests.transcripts.stories import STORIES, transcript

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", STORIES)
def test_the_story_goes_as_it_is_written_down(name: str) -> None:
    assert transcript(name) == (HERE / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_the_same_each_time(name: str) -> None:
    assert transcript(name) == transcript(name)


def test_no_transcript_is_left_of_a_story_that_is_gone() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == sorted(STORIES)
