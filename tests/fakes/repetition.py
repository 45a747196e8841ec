"""Few examples in `make test`, and many in `make test-long`."""

import pytest


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with each of the two numbers as its argument `count`: with `many`, it takes long."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.long)])
