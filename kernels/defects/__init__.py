"""Planted defects: correct kernels and planners with one mistake each, which the judge must find."""
