"""Attention kernels of installed libraries, each behind an extra of this package (docs/guides/libraries.md).

A module here is read by every process, and so imports its library inside functions, which run in workers alone.
"""
