"""Benchmarks of the library against other libraries and plain loops, both measured together in one run.

Run `python -m benchmarks` (all), `python -m benchmarks growing replay/uniform` (some) or `--list`.
"""
