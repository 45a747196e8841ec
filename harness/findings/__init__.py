"""Findings: folders on disk, their states from one campaign to the next, and the ledger of known ones."""
