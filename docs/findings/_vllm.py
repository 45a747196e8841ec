"""Modules of an unpacked vLLM, imported alone: stand-ins replace the modules that they import."""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

RELEASE = "0.33.0"


def installed(package="vllm", *, pip=f"vllm=={RELEASE}"):
    """Return the folder of an installed package, which is not imported. Exit with 2 if there is none."""
    found = importlib.util.find_spec(package)
    if found is None:
        print(f"{package} is not installed: pip install --no-deps {pip}")
        sys.exit(2)
    return Path(next(iter(found.submodule_search_locations)))


def import_file(name, file):
    """Import a file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Anything(type):
    """A class that has any attribute, and can be subclassed, indexed, combined and called."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__init__": lambda *_, **__: None})

    def __getitem__(cls, _):
        return cls

    def __or__(cls, _):
        return cls


class Enumeration(type):
    """A class whose members are their names."""

    def __getattr__(cls, name):
        return name


class Metadata(SimpleNamespace):
    """The plan of a batch, whose other fields are None."""

    def __getattr__(self, name):
        return None


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of vLLM and FlashInfer, with these members and any others."""

    def __init__(self, members):
        self.members = members

    def find_spec(self, name, path, target=None):
        """Return the spec of a stand-in."""
        if name.partition(".")[0] in ("vllm", "flashinfer"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """Return the stand-in."""

        def member(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return self.members.get(name, getattr(Anything("Module", (), {}), name))

        module = ModuleType(spec.name)
        module.__getattr__ = member
        return module

    def exec_module(self, module):
        """Do nothing."""


def module_of(name, members):
    """Import one module of the installed vLLM, such as `v1.attention.backends.flash_attn`."""
    file = installed() / f"{name.replace('.', '/')}.py"
    sys.meta_path.insert(0, Finder(members))
    return import_file(f"vllm.{name}", file)


def flash_attention():
    """Import the backend of FlashAttention."""
    members = {
        "init_logger": logging.getLogger,
        "is_quantized_kv_cache": lambda dtype: dtype != "auto",
        "canonicalize_singleton_dim_strides": lambda tensor: tensor,
        "AttentionType": Enumeration("AttentionType", (), {}),
        "_maybe_symmetrize_window": lambda window, _: window,
    }
    return module_of("v1.attention.backends.flash_attn", members)


@contextlib.contextmanager
def code_of_the_release(words=""):
    """Exit with 2 if the block raises because the installed vLLM's code is another."""
    try:
        yield
    except (AttributeError, AssertionError, KeyError, TypeError) as error:
        print(f"{words}: the code is not that of {RELEASE}: {error!r}".removeprefix(": "))
        sys.exit(2)
