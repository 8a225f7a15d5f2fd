"""Search in data sets: metadata tables, SQL queries, saved selections, train/test splits and statistics."""

__all__: list[str] = []
