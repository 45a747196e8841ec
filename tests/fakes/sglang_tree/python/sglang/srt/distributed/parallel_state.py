"""The groups of processes that this one is in; a loader sets them."""
