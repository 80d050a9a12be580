"""Where ledger metadata lives in the metadata store, and how ledgers get their ids."""

from ledger.manager.layout import LAYOUTS, Layout
from ledger.manager.ledger_store import LedgerStore

__all__ = ["LAYOUTS", "Layout", "LedgerStore"]
