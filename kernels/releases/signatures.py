"""Signatures of FlashInfer's entry points by version: calls are bound like those of the version that a release pins.

scripts/flashinfer_signatures.py reads them from released wheels, so that no FlashInfer has to be installed.
"""

import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from packaging.version import Version

_FILE = Path(__file__).with_suffix(".json")


@cache
def signatures(flashinfer: Version | None) -> Mapping[str, inspect.Signature]:
    """The signature of each function in this version, or in the last known one before it; None selects the newest.

    A version before all known ones gets the oldest.
    """
    known = sorted((Version(name), functions) for name, functions in json.loads(_FILE.read_text()).items())
    _, functions = max((each for each in known if flashinfer is None or each[0] <= flashinfer), default=known[0])
    return {
        name: inspect.signature(eval(f"lambda {parameters}: None"))  # noqa: S307 - Python source of this project's own
        for name, parameters in functions.items()
    }
