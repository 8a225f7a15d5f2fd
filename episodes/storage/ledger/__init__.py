"""What each update of a run learned from, noted row by row on disk, and where two runs begin to differ."""

from episodes.storage.ledger.difference import Difference, difference
from episodes.storage.ledger.ledger import Ledger
from episodes.storage.ledger.stored_ledger import StoredLedger, Update

__all__ = ["Ledger", "StoredLedger", "Update", "difference", "Difference"]
