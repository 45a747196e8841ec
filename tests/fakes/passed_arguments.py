"""What functions under test were passed. Backends of a file are loaded as another module than the test: this is one."""

from collections import Counter

PASSED: Counter[str] = Counter()
