"""Processes that may die: they run cases, and the remains of one that died say why."""
