"""Run, trace and read cases made of literal calls."""
