"""The modules of all backends on Hopper: FlashInfer has a specification for each, and no two are the same."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from forked_python import forked_processes
from packaging.version import Version

pytest.importorskip("flashinfer", reason="the modules are FlashInfer's")

_SPECIFIED = """
import functools, json
import jinja2
# FlashInfer compiles a few templates again for each of 500 kernels, which takes 15 s.
jinja2.Template = functools.cache(jinja2.Template)
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.cuda.visible import Arch
hopper = [backend for backend in GPU_BACKENDS if Arch.HOPPER in backend.archs]
modules = {module.name: module for backend in hopper for module in backend.modules()}
specified, lacking = {}, []
for name, module in modules.items():
    try:
        specified[name] = module.spec().name
    except (ImportError, TypeError):
        # A campaign names the module with this reason, and leaves its cases out.
        lacking.append(name)
print(json.dumps([specified, lacking]))
"""


@pytest.mark.slow
def test_each_is_specified_once_for_hopper(tmp_path: Path) -> None:
    # In a process of its own: FlashInfer reads these when it is imported, and remembers what it saw.
    environment = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    script = tmp_path / "specified.py"
    script.write_text(_SPECIFIED)
    with forked_processes():
        done = subprocess.run(
            [sys.executable, script],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    specified, lacking = json.loads(done.stdout.splitlines()[-1])
    if Version(version("flashinfer-python")) >= Version("0.7.4"):
        assert not lacking
    assert len(specified) > 10
    assert len(set(specified.values())) == len(specified)
