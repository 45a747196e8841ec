"""Sweeping releases: the same failures looked for in each, and what a search of each finds, looked for in all others.

`versions` reads which releases are meant, `wanted` what is looked for and how a
verdict shows it, `replaying` runs that on a release, `sweep` does it for all of them, `results` is what is kept, and
`course` says when a failure began and ended. `markdown` and the command line draw the table.
"""
