"""The arguments that functions under test received, in one module for all backends of files."""

from collections import Counter

PASSED: Counter[str] = Counter()
