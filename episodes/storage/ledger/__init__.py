"""Ledgers: which rows each update of a training run learned from, and where two runs differ."""

from episodes.storage.ledger.difference import Difference, difference
from episodes.storage.ledger.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader, LedgerUpdate

__all__ = ["Ledger", "LedgerReader", "LedgerUpdate", "difference", "Difference"]
