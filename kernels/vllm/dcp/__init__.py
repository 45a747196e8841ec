"""Decode context parallelism: the ranks of a server that share each request's keys, in one process."""
