"""Signatures of FlashInfer's entry points by version: calls are bound like those of the version that a release pins.

scripts/flashinfer_signatures.py reads them from released wheels, so that no FlashInfer has to be installed.
"""

import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from packaging.version import Version

_FILE = Path(__file__).with_suffix(".json")


@cache
def signatures(flashinfer: Version | None) -> Mapping[str, inspect.Signature]:
    """Read signatures of functions and methods in this version, or the last known one before; None is the newest.

    A version before all known ones gets the oldest.
    """
    known = sorted((Version(name), functions) for name, functions in json.loads(_FILE.read_text()).items())
    _, functions = max((each for each in known if flashinfer is None or each[0] <= flashinfer), default=known[0])
    return {
        # Python source of this project's own. Dtypes are defaults of some.
        name: inspect.signature(eval(f"lambda {parameters}: None", {"torch": torch}))  # noqa: S307
        for name, parameters in functions.items()
    }
