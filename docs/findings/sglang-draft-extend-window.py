"""SGLang's flashinfer plans replayed draft extends with a request's first keys. Needs torch and an unpacked sglang.

The planner's own method is run for the wrapper of windows. Nothing else of SGLang is imported.
"""

import __future__

import ast
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import installed

with requirements("torch"):
    import torch

root = installed("sglang", pip="sglang") / "srt"


def method(path, owner, name):
    """Return a method's definition in a file of the release."""
    classes = (each for each in ast.parse((root / path).read_text()).body if getattr(each, "name", "") == owner)
    return next(each for each in next(classes).body if getattr(each, "name", "") == name)


planner = method("layers/attention/flashinfer_backend.py", "FlashInferIndicesUpdaterPrefill", "update_sliding_window")
gather = method("speculative/eagle_info.py", "EagleDraftExtendInput", "generate_attn_arg_prefill")
names = {"torch": torch}
flags = __future__.annotations.compiler_flag
exec(compile(ast.Module([planner], []), "update_sliding_window", "exec", flags), names)  # noqa: S102 - code of the release

plans = []
backend = SimpleNamespace(
    sliding_window_size=8,
    _swa_kv_pool=None,
    kv_indptr=[None, None],
    qo_indptr=[None, None],
    prefill_wrapper_ragged=None,
    call_begin_forward=lambda *args, **kwargs: plans.append((args, kwargs)),
)
BEFORE, DRAFTS, ACCEPTED = 100, 4, 2
lengths = torch.tensor([BEFORE + DRAFTS])
accepted = SimpleNamespace(num_accept_tokens=torch.tensor([ACCEPTED]))
names["update_sliding_window"](
    backend,
    None,
    lengths,
    lengths,
    BEFORE + DRAFTS,
    None,
    [None, None],
    False,
    None,
    accepted,
    **{each.arg: None for each in planner.args.kwonlyargs},
)
(_, _, _, planned, *_), given = plans[0]
starts = "kv_start_idx" in {each.arg for each in (*gather.args.args, *gather.args.kwonlyargs)}
first = BEFORE + DRAFTS - int(planned) if starts else 0
keys = f"{first} to {first + int(planned) - 1}"
show(f"{DRAFTS} queries behind {BEFORE} tokens, {ACCEPTED} accepted, 8 keys before each: expected keys 92 to 103")
show(f"planned: keys {keys}, window_left {given.get('window_left', -1)}", wrong=keys != "92 to 103")
finish()
