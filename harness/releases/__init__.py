"""Releases: run the same failures with each, to find the ones in which they began and ended.

A bisection runs one script: `halving` chooses versions, `sites` installs them, `script` runs it. A sweep runs cases on
an engine's releases: `versions` parses ranges, `wanted` defines the failures to look for, `replaying` runs one on a
release, `sweep` runs and searches all of them, and `results` is the file. Both end in `outcomes`. Imports no command
line.
"""
