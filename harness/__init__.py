"""The core's larger half: memory, workers, the judge, campaigns, findings, the command line and the pytest plugin.

With `reference`, `strategies` and packages of `kernels` (interface, planning, arguments, functions, building,
cuda, meaning, native, cache_writes) it draws, runs, judges, minimizes and files cases of any backend.

Door: `attnfuzz` (the public names), `harness/campaign/run.py`, and the pytest plugin.

May touch: no guest. It finds backends, engines, commands, homes, reported cases, functions, toolchains and sources of
scripts by group in `kernels/interface/guests.py`. The wings of guests are the packages `calibrate`, `defects`, `dumps`,
`releases`, `reported` and `serve` here, and subpackages of `cli`; their pages are the docstrings of `kernels.gpu`,
`kernels.libraries`, `kernels.releases`, `harness.serve` and `kernels.defects`.

Tests: `make test-core`, all that are of no wing.
"""
