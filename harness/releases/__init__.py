"""Releases: run the same failures with each, to find the ones in which they began and ended.

`versions` parses ranges. A bisection runs one script: `halving` chooses versions, `sites` installs them, `script` runs
it. A sweep runs cases on an engine's releases: `wanted` defines the failures to look for, `replaying` runs one on a
release, `sweep` runs and searches all of them, and `results` is the file. Both end in `outcomes`: when a failure began
and ended. They differ in their order: a bisection needs few versions of one failure; a sweep runs all failures of a
release in turn, since workers that have loaded a release can't run another. Imports no command line.
"""
