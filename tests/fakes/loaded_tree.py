"""Stands for a process that has loaded a release: the fake source tree of SGLang, loaded during a test."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fake_sglang import copy_tree
from packaging.version import Version

from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.sglang.kinds import KINDS
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.reference.case import Case, KvView, Outputs, Step, Views
from attnfuzz.reference.geometry import Geometry


class LoadedTree:
    """What the loader gives of a release, of the fake tree in `root`."""

    def __init__(self, root: Path) -> None:
        self.kind = KINDS["trtllm_mha"]
        self.release = Release(SGLANG, "sglang==0.5.9", Version("0.5.9"), root, None)

    def module(self, name: str) -> Any:
        """A module of the tree."""
        return importlib.import_module(name)

    def listen(self, note: object) -> None:
        """The tree has no stubs."""


@contextmanager
def loaded_tree(folder: Path) -> Iterator[LoadedTree]:
    """A copy of the tree in `folder`, imported; its modules are forgotten at the end."""
    root = copy_tree(folder) / "python"
    sys.path.insert(0, str(root))
    try:
        # A server's process begins with settings in its environment.
        with mock.patch.dict(os.environ):
            yield LoadedTree(root)
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]


def served_case(geometry: Geometry, *steps: Step, **others: Any) -> Case:
    """A case on a release: its pools are token-major."""
    return Case(backend="sglang", geometry=geometry, steps=steps, views=Views(kv=KvView.TOKEN_MAJOR), **others)


def served(loaded: LoadedTree, case: Case) -> Server:
    """A server around a case, in memory without guards."""
    loaded.kind = KINDS["trtllm_mla" if case.geometry.latent else "trtllm_mha"]
    return Server(loaded, case, Bench(PlainMemory(Outputs.POISONED), _no_launcher(), torch.device("cpu")))


def _no_launcher() -> Any:
    return None
