"""Hypothesis profiles for tests with `@given(cases(...))`: pytest --hypothesis-profile attnfuzz-nightly.

Hypothesis calls `register` on import, through its entry point: nothing is loaded in test runs without it.
"""


def register() -> None:
    """Register attnfuzz-ci, the same few cases at each commit, and attnfuzz-nightly, many new ones every night."""
    # Imported late: importing Hypothesis calls this.
    from hypothesis import HealthCheck, settings  # noqa: PLC0415

    # Not the current profile: Hypothesis has one for CI.
    parent = settings.get_profile("default")
    # A case takes milliseconds, and a death of its worker a tenth of a second.
    slow = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("attnfuzz-ci", parent, max_examples=200, derandomize=True, database=None, **slow)
    settings.register_profile("attnfuzz-nightly", parent, max_examples=20_000, derandomize=False, **slow)
