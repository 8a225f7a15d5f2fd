"""Benchmarks: speed and memory of this library, compared with other libraries and plain loops. Both sides of a
comparison are measured together in one run.

Run `python -m benchmarks` (all), `python -m benchmarks growing replay/uniform` (some) or `--list`.
"""
