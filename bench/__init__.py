"""Benches: what this project does beside what it is compared to, in one session.

`make bench` runs each module here. Figures depend on the machine, so none is kept in the
repository: a run prints its table and leaves the times under `build/bench/`.
"""
