"""Backends of users: loaded and asked in processes that may die, and known to all others by a description."""
