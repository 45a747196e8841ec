"""Code that runs in workers only."""
