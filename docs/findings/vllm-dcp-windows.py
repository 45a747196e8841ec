"""vLLM's FlashAttention backend counts windows in a rank's own keys. Needs torch and an unpacked vllm.

`FlashAttentionImpl._forward_with_dcp` runs on the CPU, as on the first of two ranks that share the keys of a request.
Logits are 0, and the value of a key is its position, so a row's output identifies the keys that it sees. Only vLLM's
module of the backend is imported, with stand-ins for its imports. FlashAttention is replaced by attention in torch with
the same windows, and the exchange between ranks by a function that also runs the other rank's part.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

try:
    import torch
except ImportError as error:
    print(f"{error}: pip install torch")
    sys.exit(2)

NAME = "vllm.v1.attention.backends.flash_attn"
PAGE, DIM, RANKS = 16, 16, 2


class Anything(type):
    """A class that has any attribute, and can be subclassed, indexed and called."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__init__": lambda *_, **__: None})

    def __getitem__(cls, _):
        return cls


class StandIn(ModuleType):
    """A module that has any name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MEMBERS.get(name, getattr(Anything("Module", (), {}), name))


class Enumeration(type):
    """A class whose members are their names."""

    def __getattr__(cls, name):
        return name


MEMBERS = {
    "init_logger": logging.getLogger,
    "is_quantized_kv_cache": lambda dtype: dtype != "auto",
    "canonicalize_singleton_dim_strides": lambda tensor: tensor,
    "AttentionType": Enumeration("AttentionType", (), {}),
    "_maybe_symmetrize_window": lambda window, _: window,
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of vLLM and FlashInfer."""

    def find_spec(self, name, path, target=None):
        """Return the spec of a stand-in."""
        if name.partition(".")[0] in ("vllm", "flashinfer"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """Return the stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module):
        """Do nothing."""


def backend():
    """Return the module of the installed vLLM's backend."""
    found = importlib.util.find_spec("vllm")
    if found is None:
        print("vllm is not installed: pip install --no-deps vllm==0.33.0")
        sys.exit(2)
    file = Path(next(iter(found.submodule_search_locations)), "v1/attention/backends/flash_attn.py")
    sys.meta_path.insert(0, Finder())
    spec = importlib.util.spec_from_file_location(NAME, file)
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


class Metadata(SimpleNamespace):
    """The plan of a batch, whose other fields are None."""

    def __getattr__(self, name):
        return None


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


def main():
    """Run the layer on a decode and on a prefill. Return 1 if a row sees other keys than those of its window."""
    module = backend()
    module.flash_attn_varlen_func = attend
    wrong = False
    for words, rows, keys, window in (
        ("a decode of 8 keys without a window", 1, 8, (-1, -1)),
        ("a decode of 8 keys, a window of 4", 1, 8, (3, 0)),
        ("the first of 3 tokens after a prefix of 5, a window of 16", 3, 8, (15, 0)),
    ):
        try:
            found = seen_keys(module, rows, keys, window)
        except (AttributeError, AssertionError, KeyError, TypeError) as error:
            print(f"{words}: the code is not that of 0.33.0: {error!r}")
            return 2
        last = keys - rows
        due = list(range(0 if window[0] < 0 else max(0, last - window[0]), last + 1))
        wrong |= found != due
        print(f"{words}: keys {found}" + (f" instead of {due}" if found != due else ""))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
