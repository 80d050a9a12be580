"""`python -m tests.transcripts` writes all transcripts anew."""

from pathlib import Path

from tests.transcripts.stories import STORIES, transcript


def main() -> None:
    for name in STORIES:
        path = Path(__file__).parent / f"{name}.txt"
        text = transcript(name)
        changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"{path.name}: {'written' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
