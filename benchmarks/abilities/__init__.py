"""Comparison of the features of replay buffers in several libraries. Each table cell is the result of a check that runs
the library.

`python -m benchmarks.abilities` prints the table as Markdown.
"""
