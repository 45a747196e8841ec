"""Which release: the same failures run with each, to say in which one they began and ended.

A bisection runs one script: `halving` decides with which versions, `sites` installs them, `script` runs it. A sweep
runs cases on the releases of an engine: `versions` reads which ones are meant, `wanted` says what is looked for and how
a verdict shows it, `replaying` runs it on a release, `sweep` runs and searches all of them, and `results` is the file.
Both end in `outcomes`. Imports no command line.
"""
