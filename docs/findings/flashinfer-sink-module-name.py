"""BatchAttentionWithAttentionSinkWrapper shares one module for two head dims. Needs FlashInfer; a GPU shows more.

A wrapper's constructor names the module that it compiles. Without a GPU, this compares the names and the generated
sources for two head dims. With one, it makes both wrappers in one process, and runs the second: all logits are 0, the
sinks are -inf, and both keys have the values 0, 1, 2, ..., which are also the output.
"""

import os
import tempfile
from pathlib import Path

from _template import finish, requirements, show

os.environ["FLASHINFER_WORKSPACE_BASE"] = tempfile.mkdtemp()
os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")

with requirements("flashinfer-python"):
    import torch
    from flashinfer import prefill
    from flashinfer.attention import BatchAttentionWithAttentionSinkWrapper as Wrapper
    from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module


def source(head_dim: int, kv_dtype: torch.dtype) -> tuple[str, set[str]]:
    """Return the name of the module that a wrapper compiles, and the lines of its configuration."""
    given = {}
    parent = prefill.BatchPrefillWithPagedKVCacheWrapper
    made, parent.__init__ = parent.__init__, lambda _, **arguments: given.update(arguments)
    Wrapper(torch.empty(0), backend="fa2", kv_data_type=kv_dtype, head_dim_qk=head_dim, head_dim_vo=head_dim)
    parent.__init__ = made
    spec = gen_customize_batch_prefill_module("fa2", *given["jit_args"], **given["jit_kwargs"])
    folder = next(Path(file).parent for file in spec.sources if spec.name in str(file))
    return spec.name, set((folder / "batch_prefill_config.inc").read_text().splitlines())


def run(head_dim: int) -> torch.Tensor:
    """Return the output of one query, on the GPU."""
    device, ints = torch.device("cuda"), torch.int32
    wrapper = Wrapper(
        torch.zeros(128 << 20, dtype=torch.uint8, device=device),
        backend="fa2",
        head_dim_qk=head_dim,
        head_dim_vo=head_dim,
    )
    starts, zero = torch.tensor([0, 1], dtype=ints, device=device), torch.zeros(1, dtype=ints, device=device)
    wrapper.plan(starts, starts, zero, zero + 2, 1, 1, head_dim, 16, causal=False, q_data_type=torch.bfloat16)
    query = torch.zeros(1, 1, head_dim, dtype=torch.bfloat16, device=device)
    pool = torch.zeros(1, 2, 16, 1, head_dim, dtype=torch.bfloat16, device=device)
    pool[:, 1] = torch.arange(head_dim, device=device)
    sinks = torch.full((1,), -torch.inf, device=device)
    return wrapper.run(query, pool, sinks, head_dim**-0.5).flatten()


base = source(64, torch.bfloat16)
for words, other in (
    ("head dim 128", source(128, torch.bfloat16)),
    ("an fp8 cache", source(64, torch.float8_e4m3fn)),
):
    same = base[0] == other[0] and base[1] != other[1]
    show(f"head dim 64 and {words}: {'one name, ' + base[0] if same else 'two names, or one source'}", wrong=same)
    for line in sorted(base[1] - other[1]):
        print(f"  - {line}")
    for line in sorted(other[1] - base[1]):
        print(f"  + {line}")
if torch.cuda.is_available():
    for head_dim in (64, 128):
        wrong = (run(head_dim) != torch.arange(head_dim, device="cuda")).sum().item()
        show(f"head dim {head_dim}: {wrong} of {head_dim} elements are wrong", wrong=wrong)
finish()
