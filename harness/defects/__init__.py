"""Measures the judge: how soon the search finds planted defects, and by which tiers."""
