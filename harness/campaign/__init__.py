"""Campaigns: slices of drawn cases over several processes. Failures are shrunk, confirmed and filed."""
