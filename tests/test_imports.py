"""What importing costs: import-linter sees who imports whom, but not when."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

EVERYTHING = """
import importlib, pkgutil, sys
import attnfuzz
for module in pkgutil.walk_packages(attnfuzz.__path__, "attnfuzz."):
    importlib.import_module(module.name)
assert "flashinfer" not in sys.modules
"""


def test_no_module_needs_flashinfer_to_be_imported() -> None:
    subprocess.run([sys.executable, "-c", EVERYTHING], check=True)


def test_importing_the_package_does_not_import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import sys, attnfuzz; assert 'torch' not in sys.modules"], check=True)
