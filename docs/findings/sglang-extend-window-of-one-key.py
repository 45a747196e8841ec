"""SGLang's extend kernels ignore a window of one key. Needs torch, triton and an unpacked sglang.

The kernels run in Triton's interpreter. Only SGLang's modules with kernels are imported, with stand-ins for the rest.
"""

from _template import finish, requirements, show
from _triton import replace_module
from _vllm import import_file, installed

with requirements("torch triton"):
    import torch
    import triton

OPS = "sglang.kernels.ops.attention"

folder = installed("sglang", pip="sglang")
for name in ("sglang", "sglang.srt", "sglang.kernels", "sglang.kernels.ops", OPS):
    replace_module(name)
replace_module("sglang.srt.environ", envs=None)
names = ("get_device_core_count", "is_cuda", "is_gfx95_supported", "is_gfx1250_supported", "is_hip")
replace_module("sglang.srt.utils", **dict.fromkeys(names, lambda *_: False))
for name in ("score_mod", "decode_attention", "extend_attention"):
    extend = import_file(f"{OPS}.{name}", folder / f"kernels/ops/attention/{name}.py")

print(f"triton {triton.__version__}, interpreted")
int32 = {"dtype": torch.int32}
# One new token after two cached ones; the values are 1, 2 and 4, and all keys have equal weight.
cached = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1).expand(3, 1, 16).contiguous()
query, new, out = torch.zeros(1, 1, 16), cached[2:].clone(), torch.empty(1, 1, 16)
for window, due in ((-1, 7 / 3), (1, 3.0), (0, 4.0)):
    extend.extend_attention_fwd(
        query, new, new, out, cached, cached, torch.tensor([0, 1], **int32), torch.tensor([0, 2], **int32),
        torch.tensor([0, 1]), None, True, None, 1, 1.0, 1.0, sm_scale=1.0, sliding_window_size=window,
    )  # fmt: skip
    seen = out[0, 0, 0].item()
    show(f"{window} keys before a query's own: expected {due:.3f}, seen {seen:.3f}", wrong=abs(seen - due) > 1e-3)
finish()
