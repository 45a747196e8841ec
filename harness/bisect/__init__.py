"""Bisecting releases: one script, run with released versions, says where a fault began and where it ended.

`sites` says which version lies in a folder, `install` fetches one, `run` runs the script with it, `search` decides
which to run, and `summary` says what follows.
"""
