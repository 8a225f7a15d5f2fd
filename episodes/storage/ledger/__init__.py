"""Ledgers: logs of the batch rows that each training update used, for comparing two runs."""

from episodes.storage.ledger.difference import Difference, difference
from episodes.storage.ledger.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader, LedgerUpdate

__all__ = ["Ledger", "LedgerReader", "LedgerUpdate", "difference", "Difference"]
