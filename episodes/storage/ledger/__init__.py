"""Ledgers: logs of the batches that each training update learned from, by which two runs can be compared."""

from episodes.storage.ledger.difference import difference
from episodes.storage.ledger.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader

__all__ = ["Ledger", "LedgerReader", "difference"]
