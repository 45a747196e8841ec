"""SGLang's DSA backend plans fewer rows than a padded draft extend has. Needs an unpacked sglang, which is only read.

`prepare_mlp_sync_batch` aligns each rank's tokens to the size of the attention group, and `cal_padded_tokens`, from
which the backend takes the rows of its plan, does not. The script reads both, and computes the rows of a batch.
"""

import ast

from _template import finish, show
from _vllm import installed

DRAFTS, REQUESTS, GROUP = 3, 5, 2

source = installed("sglang", pip="sglang") / "srt"


def aligned(file, name, rows):
    """Return `rows` as the function aligns them: to a multiple of the attention group, or not at all."""
    functions = (each for each in ast.walk(ast.parse((source / file).read_text())) if isinstance(each, ast.FunctionDef))
    body = next(each for each in functions if each.name == name)
    aligns = any(
        "ceil_align" in (call := ast.unparse(each)) and "attn_tp_size" in call
        for each in ast.walk(body)
        if isinstance(each, ast.Call)
    )
    return -(-rows // GROUP) * GROUP if aligns else rows


tokens = REQUESTS * DRAFTS
batch = aligned("model_executor/forward_batch_info.py", "prepare_mlp_sync_batch", tokens)
plan = aligned("layers/attention/dsa/utils.py", "cal_padded_tokens", tokens)
print(f"the largest rank extends {REQUESTS} requests by {DRAFTS} drafts, in attention groups of {GROUP}")
show(f"rows of queries {batch}, rows of the plan {plan}", wrong=plan != batch)
finish()
