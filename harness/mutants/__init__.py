"""Measures the search on code from elsewhere: mutants of a planner, each run on cases that reach its line."""
