"""The pytest plugin, and how its workers share a search."""
