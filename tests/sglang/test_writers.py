"""A release's writers of the KV cache: their calls bind to its signatures, and the sources to compile are there."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.releases.on_hopper import HopperRelease
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.project import SGLANG

pytestmark = pytest.mark.sglang

BEFORE, SINCE = Path("sglang/jit_kernel"), Path("sglang/kernels")
KEY = torch.zeros(3, 2, 64, dtype=torch.bfloat16)
LATENT = torch.zeros(3, 1, 576, dtype=torch.bfloat16)
SLOTS = torch.arange(3)
TOKENS: dict[str, dict[str, torch.Tensor]] = {
    "store_cache": {
        "key": KEY,
        "value": KEY,
        "k_cache": torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16),
        "v_cache": torch.zeros(4, 16, 2, 64, dtype=torch.bfloat16),
    },
    "set_mla_kv_buffer": {"key": LATENT, "kv_cache": torch.zeros(4, 1, 16, 576, dtype=torch.bfloat16)},
}


def signature(file: Path, function: str) -> inspect.Signature:
    """The signature of a function in a file, which is not imported."""
    (found,) = (
        each for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef) and each.name == function
    )
    found.decorator_list, found.body = [], []
    names: dict[str, Any] = {"torch": torch}
    exec(f"{ast.unparse(found)} ...", names)  # noqa: S102 - a signature without its body
    return inspect.signature(names[function])


@pytest.mark.parametrize(
    ("release", "kind"),
    [
        ("0.5.9", "store_cache"),
        ("0.5.14", "store_cache"),
        ("0.5.14", "set_mla_kv_buffer"),
        ("0.5.17", "store_cache"),
        ("0.5.23", "store_cache"),
        ("0.5.23", "set_mla_kv_buffer"),
    ],
)
def test_a_call_binds_to_the_signature_of_the_release(release: str, kind: str) -> None:
    backend = ENGINE.resolve(f"hopper:sglang=={release}:{kind}")
    assert isinstance(backend, HopperRelease)
    root, old = release_of(SGLANG, f"sglang=={release}").root, Version(release) < Version("0.5.17")
    session: Any = backend.session
    file = "kvcache" if kind == "store_cache" else kind
    written = root / (BEFORE if old else SINCE / "ops/kvcache") / f"{file}.py"
    taken = session.args[0].arrange(slot_mapping=SLOTS, **TOKENS[kind])
    bound = signature(written, kind).bind(**taken)
    assert backend.kernels[0].writes <= bound.arguments.keys()
    assert signature(written, f"can_use_{kind}").parameters
    sources = root / (BEFORE if old else SINCE / "jit")
    assert (sources / "csrc/elementwise" / f"{file}.cuh").is_file()
    assert (sources / "include/sgl_kernel/tensor.h").is_file()
