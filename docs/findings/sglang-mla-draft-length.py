"""SGLang 0.5.9 to 0.5.23, trtllm_mla: a draft model's decodes do not see their own token. Needs torch.

The draft model of EAGLE or MTP decodes in a chain: step i writes its key to slot seq_lens + i and attends to it.
A release's backends pass the number of keys to the kernel; trtllm_mla passes the same number at each step.
"""

from _template import finish, requirements, show

with requirements("torch"):
    import torch

SEQ_LEN, STEPS = 6, 3


def trtllm_mha(step):
    """trtllm_mha_backend.py 0.5.23, lines 1250 and 979: speculative_step_id is the step."""
    return SEQ_LEN + step + 1


def trtllm_mla(step):
    """trtllm_mla_backend.py 0.5.23, lines 851 and 642: each step's backend is made without its number (line 1785)."""
    del step
    return SEQ_LEN


def drafted(lengths):
    """Attend like each step's token, with zero queries: the mean of the values 1, 2, 3, ... that it sees."""
    cache = torch.zeros(SEQ_LEN + STEPS)
    cache[:SEQ_LEN] = torch.arange(1, SEQ_LEN + 1)
    seen = []
    for step in range(STEPS):
        # out_cache_loc of eagle_worker_v2.py, draft_forward: one more slot with each step.
        cache[SEQ_LEN + step] = SEQ_LEN + step + 1
        seen.append(round(float(cache[: lengths(step)].mean()), 3))
    return seen


expected = [(SEQ_LEN + step + 2) / 2 for step in range(STEPS)]
for lengths in (trtllm_mha, trtllm_mla):
    keys, seen = [lengths(step) for step in range(STEPS)], drafted(lengths)
    show(f"{lengths.__name__}: {keys} keys at steps 0 to 2: expected {expected}, seen {seen}", wrong=seen != expected)
finish()
