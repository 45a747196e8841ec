"""The search: slices of drawn cases over several processes, what failed in them shrunk, confirmed and filed."""
