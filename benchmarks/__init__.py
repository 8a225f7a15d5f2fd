"""Every figure of the README: our side, a peer's or a bare loop's, measured together and held against a bar.

Run `python -m benchmarks` (all), `python -m benchmarks growing replay/uniform` (some) or `--list`.
"""
