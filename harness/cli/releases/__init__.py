"""The commands on releases of packages and engines."""
