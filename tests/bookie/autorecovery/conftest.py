from tests.ledger.metastore.conftest import backend

__all__ = ["backend"]
