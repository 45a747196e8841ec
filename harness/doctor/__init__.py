"""A short examination of a machine: its software, the mistakes that attnfuzz detects on it, and its speed.

Each part yields rows as it measures them. Guests have parts of their own (`attnfuzz.examinations`).
"""
