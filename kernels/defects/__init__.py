"""The wing of self-tests: bugs that the search must find, and the noise of kernels that are correct.

Packages: this one, planted defects: correct kernels and planners with one mistake each, which never changes the
reference; `harness/defects/`, which measures how soon a search finds them, and by which tiers; `harness/reported/`, the
catalogue of reported bugs in `bugs/` and their counterparts among our backends; `harness/calibrate/`, which fits noise
models to correct kernels; and the commands `defects`, `bugs` and `calibrate` in `harness/cli/selftests/`.

Door (`attnfuzz.shipped`): planted backends (`catalogue.planted` and `catalogue.pair`, for names with "+"), the cases of
reported bugs that a campaign runs first, and the commands.

May touch: the core, and the planners of FlashInfer's wing, in which most defects are planted. `harness/calibrate/`
samples in the process of a worker.

Used by sweeps, which run reported bugs in releases.

Tests: `make test-selftests`.
"""
