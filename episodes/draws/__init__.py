"""Batches of sampled steps, computed in one place for every store. A store implements `Draw`."""

__all__: list[str] = []
