"""Plain training loops, written in one file without this library. They are the reference for the trainers.

Each is a generator that yields the environment steps taken so far after every update, and learns for as long as it is
asked. They use torch and autograd, Adam on one vector of all parameters as our optimizers do, and bootstrap rightly at
every ending.
"""
