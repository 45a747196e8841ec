"""SGLang's fast_topk on scores that lie close together. Needs sglang-kernel and a Hopper GPU.

The 2,048 highest of normally distributed scores are listed, and compared with torch's.
"""

import importlib.util
from pathlib import Path

from _template import finish, require_gpu, requirements, show

with requirements("torch; pip install --no-deps sglang-kernel"):
    import torch

    packages = importlib.util.find_spec("sgl_kernel")
    if packages is None:
        raise ImportError("sgl_kernel is missing")

require_gpu(hopper=True)
(library,) = [path for each in packages.submodule_search_locations for path in Path(each).glob("sm90/common_ops.*")]
torch.ops.load_library(str(library))

LISTED = 2048
print("scores       keys  missed  repeated  lowest listed  2,048th")
for words, mean, deviation in (("0 +- 1", 0.0, 1.0), ("10 +- 1", 10.0, 1.0), ("40 +- 4", 40.0, 4.0)):
    for keys in (4096, 8192, 16384, 32768, 65536, 131072):
        generator = torch.Generator("cuda").manual_seed(keys)
        scores = mean + deviation * torch.randn(1, keys, device="cuda", generator=generator)
        lists = torch.full((1, LISTED), -1, dtype=torch.int32, device="cuda")
        lengths = torch.full((1,), keys, dtype=torch.int32, device="cuda")
        torch.ops.sgl_kernel.fast_topk(scores, lists, lengths, None)
        last = scores[0].topk(LISTED).values[-1]
        inside = lists[0][(lists[0] >= 0) & (lists[0] < keys)].long().unique()
        listed = scores[0, inside]
        missed = int((scores[0] > last).sum() - (listed > last).sum())
        numbers = f"{missed:7} {LISTED - len(inside):9} {float(listed.min()):14.4f} {float(last):8.4f}"
        show(f"{words:9} {keys:7} {numbers}", wrong=missed)
finish()
