"""Decode against paged latents: trtllm_batch_decode_with_kv_cache_mla."""

from dataclasses import dataclass

from attnfuzz.kernels.entry_points.attention import Attention, Stated, native_workspace
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.entry_points.entry_point import Arguments, Parameter, Role
from attnfuzz.kernels.entry_points.forms import WORKSPACE, Form, WrongForm, parameters_of, sinks_forms
from attnfuzz.kernels.entry_points.pool import LATENTS, latent_pool
from attnfuzz.kernels.entry_points.spans import cumulative_rows, paged_spans, uniform_rows

_PER_REQUEST = ("requests", "tokens per request", "q heads")
_PACKED = ("tokens", "q heads")
_REQUIRED = ("query", "kv_cache", "workspace_buffer", "kv_lora_rank", "qk_rope_head_dim", "block_tables", "max_seq_len")
_NUMBERS = ("kv_lora_rank", "qk_rope_head_dim", "max_seq_len", "max_q_len", "sparse_mla_top_k")


@dataclass(frozen=True)
class MlaDecode(AttentionEntryPoint):
    """The batch is the first axis of `query` [batch, q_len, ...], or what `cum_seq_lens_q` says of packed queries.

    A sparse call, whose table holds tokens instead of pages, has no spans.
    """

    name: str = "trtllm_batch_decode_with_kv_cache_mla"
    module: str | None = "flashinfer.mla"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
        required = _REQUIRED if _is_sparse(arguments) else (*_REQUIRED, "seq_lens")
        return parameters_of(arguments, _forms(arguments), required, _NUMBERS)

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        query, cumulative = arguments["query"], arguments.get("cum_seq_lens_q")
        if cumulative is not None:
            batch = max(0, cumulative.shape[0] - 1)
            batch_from: tuple[str, ...] = ("cum_seq_lens_q",)
            batch_text = f"cum_seq_lens_q has {cumulative.shape[0]} entries, which is a batch of {batch}"
            rows = cumulative_rows(cumulative, batch)
        elif query.ndim == 3:
            raise WrongForm("query", f"query is {list(query.shape)}, without cum_seq_lens_q to part it into requests")
        else:
            batch, batch_from = query.shape[0], ("query",)
            batch_text = f"query is {list(query.shape)}, which is a batch of {batch}"
            rows = uniform_rows(batch, query.shape[1])
        q_len = query.shape[1] if cumulative is None else None
        pool, tables = latent_pool(arguments), arguments["block_tables"]
        return Attention(
            arguments=arguments,
            parameters=parameters,
            batch=batch,
            batch_from=batch_from,
            batch_text=batch_text,
            spans=() if _is_sparse(arguments) else paged_spans(rows, arguments["seq_lens"], tables, pool.page_size),
            max_kv=Stated("max_seq_len", arguments["max_seq_len"]),
            max_q=Stated("max_q_len", arguments["max_q_len"]) if arguments.get("max_q_len") is not None else None,
            q_len=q_len,
            head_dim_vo=arguments["kv_lora_rank"],
            table="block_tables",
            checked_table=True,
            cum_q=None if cumulative is None else "cum_seq_lens_q",
            pool=pool,
            workspace=lambda: native_workspace(
                batch=batch,
                q_len=q_len,
                q_heads=query.shape[-2],
                kv_heads=1,
                head_dim_vo=pool.head_dim_vo,
                max_seq_len=arguments["max_seq_len"],
            ),
        )


def _forms(arguments: Arguments) -> dict[str, Form]:
    sparse = _is_sparse(arguments)
    tables = (("requests", "columns"), ("requests", "K and V", "columns"))
    rows = (("tokens", "columns"), ("requests", "tokens per request", "columns"))
    lengths = (("requests",), ("requests", "tokens per request")) if sparse else (("requests",),)
    return {
        "query": Form(Role.QUERY, ((*_PER_REQUEST, "qk dim"), (*_PACKED, "qk dim"))),
        "kv_cache": LATENTS,
        "workspace_buffer": WORKSPACE,
        "block_tables": Form(Role.PAGE_TABLE, rows if sparse else tables),
        "seq_lens": Form(Role.KV_LENGTHS, lengths),
        "cum_seq_lens_q": Form(Role.CUM_Q, (("requests + 1",),)),
        "out": Form(Role.OUT, ((*_PER_REQUEST, "vo dim"), (*_PACKED, "vo dim"))),
        "lse": Form(Role.LSE, (_PER_REQUEST, _PACKED)),
        **sinks_forms(arguments),
    }


def _is_sparse(arguments: Arguments) -> bool:
    top_k = arguments.get("sparse_mla_top_k")
    return isinstance(top_k, int) and top_k > 0
