"""Bare loops: what a skilled person writes in one file, without this library. They are the floor of our trainers.

Each is a generator that yields the environment steps taken so far after every update, and learns for as long as it is
asked. They use torch and autograd, Adam on one vector of all parameters as our optimizers do, and bootstrap rightly at
every ending.
"""
