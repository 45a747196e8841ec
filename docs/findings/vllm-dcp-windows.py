"""vLLM's FlashAttention backend counts windows in a rank's own keys. Needs torch and an unpacked vllm.

`FlashAttentionImpl._forward_with_dcp` runs on the CPU, as on the first of two ranks that share the keys of a request.
Logits are 0, and the value of a key is its position, so a row's output identifies the keys that it sees. Only vLLM's
module of the backend is imported, with stand-ins for its imports. FlashAttention is replaced by attention in torch with
the same windows, and the exchange between ranks by a function that also runs the other rank's part.
"""

from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import Metadata, code_of_the_release, flash_attention

with requirements("torch"):
    import torch

PAGE, DIM, RANKS = 16, 16, 2


def masked(rows, keys, causal, window):
    """Return the keys that each row sees: FlashAttention aligns the last row with the last key."""
    row, key = torch.arange(rows).unsqueeze(1) + keys - rows, torch.arange(keys)
    left, right = window[0], 0 if causal else window[1]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if right >= 0:
        seen &= key <= row + right
    if left >= 0:
        seen &= key >= row - left
    return seen


def attend(*, q, v, causal, window_size, out=None, seqused_k=None, **_):
    """Attend with logits of 0: the mean of the values that each row sees, and their log-sum-exp."""
    keys = v.shape[0] if seqused_k is None else int(seqused_k)
    value = v if seqused_k is None else v[1, :keys]
    seen = masked(q.shape[0], keys, causal, window_size).double()
    count = seen.sum(1, keepdim=True)
    result = (seen @ value[:, 0].double() / count.clamp(min=1)).unsqueeze(1)
    if out is not None:
        out.copy_(result)
    return out if out is not None else result, count.log().T


def merge(out, one, one_lse, two, two_lse):
    """Merge two parts of rows, as vLLM's merge_attn_states does."""
    weights = torch.stack([one_lse.double(), two_lse.double()]).softmax(0).nan_to_num().unsqueeze(-1).transpose(1, 2)
    out.copy_((weights * torch.stack([one.double(), two.double()])).sum(0))


def seen_keys(module, rows, keys, window):
    """Run the layer on the last rows of a request. Return the positions that the first row sees."""
    context = keys - rows
    # A value is one-hot: the position of its key. Page 0 is the null block.
    values = torch.eye(PAGE, DIM).unsqueeze(1)
    caches = [torch.zeros(2, PAGE, 1, DIM) for _ in range(RANKS)]
    lengths = [len(range(rank, context, RANKS)) for rank in range(RANKS)]
    for rank, cache in enumerate(caches):
        cache[1, : lengths[rank]] = values[rank:context:RANKS]
    impl = object.__new__(module.FlashAttentionImpl)
    impl.__dict__ |= {
        "scale": 1.0, "head_size": DIM, "num_heads": 1, "sliding_window": window, "alibi_slopes": None,
        "logits_soft_cap": 0.0, "vllm_flash_attn_version": 3, "dcp_world_size": RANKS, "_dcp_max_num_tokens": 0,
        "_dcp_dtype": torch.float32,
    }  # fmt: skip

    def combine(mine, mine_lse, _, **__):
        other, lse = attend(
            q=mine, v=caches[1], causal=False, window_size=list(window), seqused_k=torch.tensor(lengths[1])
        )
        out = torch.empty_like(mine)
        merge(out, mine, mine_lse.transpose(0, 1), other, lse)
        return out, torch.logaddexp(mine_lse.transpose(0, 1), lse).transpose(0, 1)

    impl.dcp_combine = combine
    module.get_dcp_group = lambda: SimpleNamespace(all_gather=lambda tensor, **_: tensor)
    module.merge_attn_states = merge
    module.should_split_fa2_dcp_context_attention = lambda *_: False
    space = SimpleNamespace(get_simultaneous=lambda _: (torch.empty(rows, 1, DIM),))
    module.current_workspace_manager = lambda: space
    metadata = Metadata(
        query_start_loc=torch.tensor([0, rows]), max_query_len=rows, causal=True, max_dcp_context_kv_len=lengths[0],
        dcp_context_kv_lens=torch.tensor(lengths[0]), max_num_splits=0, num_decode_reqs=0, num_prefill_reqs=0,
        num_decode_tokens=0, num_prefill_tokens=0,
    )  # fmt: skip
    query, out = torch.zeros(rows, 1, DIM), torch.zeros(rows, 1, DIM)
    new = values[context:keys]
    vars(type(impl))["_forward_with_dcp"](impl, query, new, new, caches[0], caches[0], out, metadata)
    return out[0, 0].nonzero().flatten().tolist()


module = flash_attention()
module.flash_attn_varlen_func = attend
for words, rows, keys, window in (
    ("a decode of 8 keys without a window", 1, 8, (-1, -1)),
    ("a decode of 8 keys, a window of 4", 1, 8, (3, 0)),
    ("the first of 3 tokens after a prefix of 5, a window of 16", 3, 8, (15, 0)),
):
    with code_of_the_release(words):
        found = seen_keys(module, rows, keys, window)
    last = keys - rows
    due = list(range(0 if window[0] < 0 else max(0, last - window[0]), last + 1))
    show(f"{words}: keys {found}" + (f" instead of {due}" if found != due else ""), wrong=found != due)
finish()
