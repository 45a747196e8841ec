"""What all tests share."""

from hypothesis.internal.conjecture import providers

pytest_plugins = ["pytester"]

# Hypothesis draws numbers from the sources of the modules that are loaded, and these depend on the tests that ran
# before. Without them a seed draws the same in every run, however the tests are shared out among processes.
providers._get_local_constants = lambda: providers._local_constants  # noqa: SLF001 - there is no setting for it
