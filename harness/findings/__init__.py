"""Findings: folders on disk, and their states from one campaign to the next."""
