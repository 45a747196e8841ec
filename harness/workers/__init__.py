"""Worker processes, which run cases and may die, and the analysis of their deaths."""
