"""SGLang's plan of drafts has no room for those near the end of the context. Needs an unpacked sglang.

Two functions of srt/speculative/spec_utils.py are evaluated without the rest of the module.
"""

import ast

from _template import finish, show
from _vllm import installed

source = installed("sglang", pip="sglang") / "srt/speculative/spec_utils.py"
names = {"draft_kv_indices_buffer_width", "draft_kv_indices_used_len"}
found = [each for each in ast.parse(source.read_text()).body if getattr(each, "name", "") in names]
functions = {}
exec(compile(ast.Module(found, []), str(source), "exec"), functions)  # noqa: S102 - code of the release

CONTEXT = 8192
# A request ends with context_len - 2 tokens (managers/tp_worker.py:421, scheduler.py:2714), so it drafts with fewer.
for steps, tokens in ((3, CONTEXT - 3), (5, CONTEXT - 5), (5, CONTEXT - 3)):
    used = functions["draft_kv_indices_used_len"](tokens, 1, 1, steps)
    room = functions["draft_kv_indices_buffer_width"](1, 1, CONTEXT)
    show(f"{steps} steps, a request of {tokens} tokens: {used} indices, room for {room}", wrong=used > room)
finish()
