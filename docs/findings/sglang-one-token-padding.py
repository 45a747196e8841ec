"""SGLang takes a prompt of one token for padding in a verify that a graph replays. Needs torch, an unpacked sglang.

`_replay_metadata` of srt/layers/attention/hybrid_linear_attn_backend.py is run without the rest of the module.
"""

import ast
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import installed

with requirements("torch"):
    import torch

source = installed("sglang", pip="'sglang<0.5.14'") / "srt/layers/attention/hybrid_linear_attn_backend.py"
classes = (each for each in ast.parse(source.read_text()).body if getattr(each, "name", "") == "MambaAttnBackendBase")
method = next(each for each in next(classes).body if getattr(each, "name", "") == "_replay_metadata")
for argument in method.args.args:
    argument.annotation = None
space = {"torch": torch, "ForwardMetadata": SimpleNamespace}
exec(compile(ast.Module([method], []), str(source), "exec"), space)  # noqa: S102 - code of the release

DRAFTS = 3
slots = torch.tensor([0, 5, 6], dtype=torch.int32)
backend = SimpleNamespace(
    topk=1,
    get_cuda_graph_seq_len_fill_value=lambda: 1,
    req_to_token_pool=SimpleNamespace(get_mamba_indices=lambda rows: slots[rows]),
    state_indices_list=[torch.full((size,), -1, dtype=torch.int32) for size in (1, 2)],
    query_start_loc_list=[torch.zeros(size + 1, dtype=torch.int32) for size in (1, 2)],
    cached_cuda_graph_verify_query_start_loc=torch.arange(0, 2 * DRAFTS + 1, DRAFTS, dtype=torch.int32),
)
mode = SimpleNamespace(is_decode_or_idle=lambda: False, is_target_verify=lambda: True)
spec_info = SimpleNamespace(draft_token_num=DRAFTS, topk=1)
for lengths in ((1, 40), (2, 40)):
    # Two requests fill a graph of two rows. The first one had a prompt of one or two tokens.
    found = space["_replay_metadata"](
        backend, 2, torch.tensor([1, 2]), mode, spec_info, torch.tensor(lengths, dtype=torch.int32)
    )
    starts, at = found.query_start_loc.tolist(), found.mamba_cache_indices.tolist()
    show(f"after {lengths[0]} and {lengths[1]} tokens: starts {starts}, slots {at}", wrong=at != [5, 6])
finish()
