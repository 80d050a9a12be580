"""The installation: our distribution, the versions of what it reads and writes, and strangers.

On PyPI the name ``dlog`` belongs to another project, which has a package of that name too. Where
both are installed, each overwrites files of the other; whoever comes to our code then is told.
"""

from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from ledger.errors import CallerError
from ledger.process import DISTRIBUTION

_STRANGER: Final = "dlog"
_SUMMARY: Final = "A replicated log for Python, built from fenced ledgers"
"""Ours was named so before: then it is no stranger."""


class OtherDlogInstalled(CallerError):
    def __init__(self, found: str) -> None:
        super().__init__(
            f"another project's package 'dlog' ({found}) is installed here, and files of the two "
            f"overwrite each other: run 'pip uninstall dlog', then 'pip install --force-reinstall "
            f"--no-deps {DISTRIBUTION}'; to have both, give each an environment of its own"
        )
        self.found = found


def install_hint(*extras: str) -> str:
    """Return what to run to have *extras*, as part of a sentence."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def other_dlog() -> str | None:
    """Return name and version of the other project's distribution, if it is installed."""
    try:
        found = distribution(_STRANGER)
    except PackageNotFoundError:
        return None
    return None if found.metadata["Summary"] == _SUMMARY else f"{_STRANGER} {found.version}"


def check_own_package() -> None:
    """Raise `OtherDlogInstalled` if the package ``dlog`` that Python found is not ours, or will
    not be after the next installation."""
    if (found := other_dlog()) is not None:
        raise OtherDlogInstalled(found)


def formats() -> dict[str, str]:
    """Return the versions that are written, and read where these are others, by what has them."""
    from bookie.entrylog.format import VERSION as ENTRY_LOG
    from bookie.identity.cookie import VERSION as COOKIE
    from bookie.index.format import VERSION as INDEX
    from bookie.journal.format import VERSION as JOURNAL
    from dlog.manifest import FORMAT_VERSION as MANIFEST
    from dlog.recordbatch import VERSION as BATCH
    from ledger.entry import VERSION as FRAME
    from ledger.metadata import FORMAT_VERSION as LEDGER
    from ledger.metastore.sqlite_format import FORMAT_VERSION as STORE
    from ledger.transport.handshake import VERSION_MAX

    written = {
        "frame": FRAME,
        "record batch": BATCH,
        "ledger metadata": LEDGER,
        "manifest": MANIFEST,
        "cookie": COOKIE,
        "journal": JOURNAL,
        "entry log": ENTRY_LOG,
        "index": INDEX,
        "embedded store": STORE,
    }
    return {"wire": str(VERSION_MAX)} | {name: str(each) for name, each in written.items()}
