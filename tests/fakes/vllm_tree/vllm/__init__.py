"""The package, whose own start would begin a server."""

raise RuntimeError("a server would begin here")
