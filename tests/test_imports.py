"""What importing costs: import-linter sees who imports whom, but not when."""

import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import forked_processes

pytestmark = pytest.mark.slow

EVERYTHING = """
import importlib, pkgutil, sys
import attnfuzz
for module in pkgutil.walk_packages(attnfuzz.__path__, "attnfuzz."):
    importlib.import_module(module.name)
assert "flashinfer" not in sys.modules
"""


def test_no_module_needs_flashinfer_to_be_imported(tmp_path: Path) -> None:
    script = tmp_path / "everything.py"
    script.write_text(EVERYTHING)
    with forked_processes():
        subprocess.run([sys.executable, script], check=True)


def test_importing_the_package_does_not_import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import sys, attnfuzz; assert 'torch' not in sys.modules"], check=True)
