"""vLLM's FlashAttention backend ignores sinks with decode context parallelism. Needs torch and an unpacked vllm.

`FlashAttentionImpl.forward` runs on one query and its own key, on the CPU: with one rank, and with two that share keys,
of a prompt without a prefix, in which nothing is exchanged. Only vLLM's module of the backend is imported,
with stand-ins for its imports. FlashAttention is replaced by attention in torch with the same sinks (`s_aux`).
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
PAGE, DIM = 16, 16


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


def attend(*, q, k, v, out=None, s_aux=None, **_):
    """Attend to one key, which may be the first of a page, and a sink for each head."""
    key, value = (each.reshape(-1, DIM)[:1].float() for each in (k, v))
    logits = torch.einsum("thd,kd->htk", q.float(), key)
    sinks = [] if s_aux is None else [s_aux.float().reshape(-1, 1, 1).expand(-1, q.shape[0], 1)]
    weights = torch.cat([logits, *sinks], dim=-1).softmax(dim=-1)[..., :1]
    result = torch.einsum("htk,kd->thd", weights, value).to(q.dtype)
    if out is not None:
        out.copy_(result)
    return result


class Metadata(SimpleNamespace):
    """The plan of a batch, whose other fields are None."""

    def __getattr__(self, name):
        return None


def output_of(module, ranks, sinks):
    """Run the layer's forward on a prompt of one token, whose logit is 0 and whose value is 1."""
    impl = object.__new__(module.FlashAttentionImpl)
    impl.__dict__ |= {
        "scale": 1.0, "kv_cache_dtype": "auto", "head_size": DIM, "num_heads": 1, "num_kv_heads": 1, "sinks": sinks,
        "sliding_window": (-1, -1), "alibi_slopes": None, "logits_soft_cap": 0.0, "attn_type": "DECODER",
        "vllm_flash_attn_version": 3, "supports_quant_query_input": False, "dcp_world_size": ranks,
        "batch_invariant_enabled": False,
        "fa4_hd256": False,
    }  # fmt: skip
    one = torch.ones(1)
    layer = SimpleNamespace(_q_scale=one, _k_scale=one, _v_scale=one)
    ends, length = torch.tensor([0, 1], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    metadata = Metadata(
        num_actual_tokens=1, query_start_loc=ends, seq_lens=length, max_query_len=1, max_seq_len=1, causal=True,
        block_table=torch.ones(1, 1, dtype=torch.int32), scheduler_metadata=None, max_num_splits=0, use_cascade=False,
        max_dcp_context_kv_len=0,
    )  # fmt: skip
    query, key, value = torch.zeros(1, 1, DIM), torch.zeros(1, 1, DIM), torch.ones(1, 1, DIM)
    cache = torch.cat([torch.zeros(2, 1, PAGE, DIM), torch.ones(2, 1, PAGE, DIM)], dim=-1)
    out = torch.empty_like(query)
    impl.forward(layer, query, key, value, cache, metadata, out)
    return out[0, 0, 0].item()


def main():
    """Run the layer on one rank and on two, without and with a sink. Return 1 if an output is wrong."""
    module = backend()
    module.flash_attn_varlen_func = attend
    wrong = False
    for ranks in (1, 2):
        for words, sinks, due in (("without sinks", None, 1.0), ("with a sink of 0", torch.zeros(1), 0.5)):
            try:
                found = output_of(module, ranks, sinks)
            except (AttributeError, AssertionError, TypeError) as error:
                print(f"ranks {ranks}, {words}: the code is not that of 0.33.0: {error!r}")
                return 2
            wrong |= found != due
            print(f"ranks {ranks}, {words}: {found}" + (f" instead of {due}" if found != due else ""))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
