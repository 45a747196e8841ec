"""Campaigns: slices of drawn cases over several processes; failures are shrunk, confirmed and filed."""
