"""FlashInfer's paged wrappers accept attention sinks and ignore them. Needs FlashInfer and a GPU.

A request has one key with a logit of 0, and a sink of 0: the key gets half of the weight.
"""

from _flashinfer import workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

ONE = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
PAGE = torch.zeros(1, dtype=torch.int32, device="cuda")
LAST = torch.ones(1, dtype=torch.int32, device="cuda")
CACHE = torch.ones(1, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
QUERY = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device="cuda")
SINKS = torch.zeros(1, device="cuda")
LAYER = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}


Wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper | flashinfer.BatchDecodeWithPagedKVCacheWrapper


def compare(name: str, wrapper: Wrapper) -> None:
    """Run the plan, and print the first element, which shows whether the sink was ignored."""
    out, lse = (result.flatten()[0].item() for result in wrapper.run(QUERY, CACHE, return_lse=True, sinks=SINKS))
    wrong = abs(out - 0.5) > 0.01 or abs(lse - 1) > 0.01
    show(f"{name}: expected out 0.5 and lse 1.0, seen out {out} and lse {lse}", wrong=wrong)


for backend in ("fa2", *(("fa3",) if torch.cuda.get_device_capability()[0] == 9 else ())):
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)
    prefill.plan(ONE, ONE, PAGE, LAST, 1, 1, 64, 16, causal=True, **LAYER)
    compare(f"prefill on {backend}", prefill)
decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD")
decode.plan(ONE, PAGE, LAST, 1, 1, 64, 16, **LAYER)
compare("decode on CUDA cores", decode)
finish()
