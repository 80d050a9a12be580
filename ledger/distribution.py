"""The name under which dlog is installed, and its version."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "dlog-ledgers"
"""On PyPI the name ``dlog`` is another project's."""


def own_version() -> str:
    """Return the version that is installed; of a source that is not, a word for that."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"
