"""Plain training loops, each written in one file without this library. Benchmarks compare the trainers with them.

Each loop is a generator that yields the number of environment steps after every update, and runs until the caller stops
it. The loops use torch, Adam on one vector of all parameters as the optimizers of this library do, and bootstrap
correctly at every kind of ending.
"""
