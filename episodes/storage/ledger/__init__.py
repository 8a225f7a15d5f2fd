"""What each update of a run learned from, noted row by row on disk, and where two runs begin to differ."""

from episodes.storage.ledger.difference import Difference, difference
from episodes.storage.ledger.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader, LedgerUpdate

__all__ = ["Ledger", "LedgerReader", "LedgerUpdate", "difference", "Difference"]
