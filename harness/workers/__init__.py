"""Processes that may die: they run cases, and what is left of one that died says why."""
