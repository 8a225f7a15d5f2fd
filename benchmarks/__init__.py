"""Benchmarks: speed and memory of this library, compared with other libraries and plain loops. Both sides of a
comparison are measured together in one run.

Run `python -m benchmarks` (all), `python -m benchmarks growing replay/uniform` (some) or `--list`.
"""

import os

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported: its ports are on 127.0.0.1
