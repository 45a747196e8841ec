"""Code that runs only in workers."""
