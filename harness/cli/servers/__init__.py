"""The command on a running server, and the reports of its homes."""
