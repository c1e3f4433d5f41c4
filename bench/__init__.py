"""Benchmarks: the library beside its peers and beside the physical limit. `python -m bench --help`.

Nothing here is shipped. `bench.subjects` runs inside the virtual environment of each library that
is measured, everything else in the project's own.
"""
