"""Benchmarks: speed and memory of this library, compared with other libraries and plain loops. Both sides of a
comparison are measured together in one run.

Run `python -m benchmarks` (all), `python -m benchmarks growing replay/uniform` (some) or `--list`.
"""

import os

# Ray reads it when it is imported. Benchmarks of RLlib import Ray before `start_ray` sets it.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
