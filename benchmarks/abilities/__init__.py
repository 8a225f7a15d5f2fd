"""What each library's replay can do. Every cell is the outcome of a check that runs the library.

`python -m benchmarks.abilities` prints the table as Markdown.
"""
