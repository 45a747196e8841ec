"""Backends made from one function, a user's or a library's."""
