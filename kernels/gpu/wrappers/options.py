"""Options of a wrapper's plan and run that a case asks for, and that leave the answer as it is."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case

_LN_2 = math.log(2.0)


def plan_options(case: Case, layer: Mapping[str, Any], *, in_graph: bool) -> dict[str, Any]:
    """Return the plan's arguments for the forms of `case`, besides those of `layer`.

    Splits of a fixed size are not for graphs: "compatibility with CUDA graph is NOT guaranteed" (docstrings of plan).
    """
    dtypes = {name: layer[name] for name in ("q_data_type", "kv_data_type")}
    options: dict[ArgumentForm, dict[str, Any]] = {
        ArgumentForm.DTYPES_BY_NAME: {name: str(dtype).removeprefix("torch.") for name, dtype in dtypes.items()},
        ArgumentForm.OUT_DTYPE_GIVEN: {"o_data_type": layer["q_data_type"]},
        ArgumentForm.BLOCKING: {"non_blocking": False},
        ArgumentForm.SPLIT_DISABLED: {"disable_split_kv": True},
        ArgumentForm.SPLIT_OF_A_PAGE: {} if in_graph else {"fixed_split_size": 1},
    }
    return {name: value for form in case.arguments for name, value in options.get(form, {}).items()}


def run_options(case: Case, results: Results) -> dict[str, Any]:
    """Return the run's arguments for the forms of `case`, with the LSE among them."""
    options: dict[str, Any] = {"lse": results.lse}
    if ArgumentForm.WINDOW_AT_RUN in case.arguments:
        options["window_left"] = case.geometry.window_left
    if ArgumentForm.LSE_BASE_E in case.arguments:
        options["lse_base"] = "ln"
    transposed = results.lse.transpose(0, 1)
    # Results that are not judged are placed plainly.
    if ArgumentForm.LSE_LAYOUT in case.arguments and transposed.is_contiguous():
        options |= {"lse_layout": "HN", "lse": transposed}
    return options


def in_base_2(case: Case, lse: torch.Tensor) -> None:
    """Convert a LSE that a run has written in base e."""
    if ArgumentForm.LSE_BASE_E in case.arguments:
        lse.div_(_LN_2)
