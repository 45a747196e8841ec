"""Decode on pages: trtllm_batch_decode_with_kv_cache, its XQA alternative, and MLA's entry point."""

from dataclasses import dataclass

from attnfuzz.kernels.entry_points.attention import Attention, Stated, native_workspace
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.meaning.call_pool import LATENTS, Pool, latent_pool, pool_forms, pool_of
from attnfuzz.kernels.meaning.entry_point import Arguments, Parameter, Role
from attnfuzz.kernels.meaning.forms import (
    TOKEN_LSE,
    WORKSPACE,
    Form,
    WrongForm,
    parameters_of,
    sinks_forms,
    window_of,
)
from attnfuzz.kernels.meaning.spans import cumulative_rows, paged_spans, uniform_rows

XQA_SEMAPHORES = 8 << 20
"""Bytes that xqa_batch_decode_with_kv_cache reserves at the beginning of its workspace."""
_REQUIRED = ("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len")
_NUMBERS = ("max_seq_len", "max_q_len", "q_len_per_req", "window_left")


@dataclass(frozen=True)
class PagedDecode(AttentionEntryPoint):
    """A batch of the query rows over `q_len_per_req`; if that is None, of the q lengths in `cumulative`.

    Block-sparse calls have no spans, since their metadata differs between KV heads, and token-sparse ones none, since
    their tables hold the tokens of each query.
    """

    name: str = "trtllm_batch_decode_with_kv_cache"
    module: str | None = "flashinfer.decode"
    layout: str = "HND"
    cumulative: str = "cum_seq_lens_q"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        return parameters_of(arguments, self._forms(arguments), _REQUIRED, _NUMBERS)

    def _forms(self, arguments: Arguments) -> dict[str, Form]:
        forms = {
            "query": Form(Role.QUERY, (("tokens", "q heads", "qk dim"),)),
            "workspace_buffer": WORKSPACE,
            "block_tables": Form(Role.PAGE_TABLE, (("requests", "columns"), ("requests", "K and V", "columns"))),
            "seq_lens": Form(Role.KV_LENGTHS, (("requests",),)),
            "out": Form(Role.OUT, (("tokens", "q heads", "vo dim"),)),
            "lse": TOKEN_LSE,
            **sinks_forms(arguments),
            self.cumulative: Form(Role.CUM_Q, (("requests + 1",),)),
        }
        if _is_block_sparse(arguments):
            forms["block_tables"] = Form(Role.PAGE_TABLE, (("kv heads", "requests", "columns"),))
            forms["seq_lens"] = Form(Role.KV_LENGTHS, (("kv heads", "requests"),))
        if arguments.get("kv_cache") is None:
            return forms
        return {**forms, **pool_forms(arguments, self._layout(arguments))}

    @property
    def _takes_batch_from_cumulative(self) -> bool:
        """Whether `cumulative` determines the batch regardless of `q_len_per_req`: in XQA's entry point."""
        return self.cumulative == "q_cu_seq_lens"

    def _layout(self, arguments: Arguments) -> str:
        return str(arguments.get("kv_layout", self.layout))

    def _max_q(self, arguments: Arguments) -> Stated | None:
        """Return the stated longest q length if q lengths differ: XQA's wrapper has no separate argument for it."""
        name = "q_len_per_req" if self._takes_batch_from_cumulative else "max_q_len"
        value = arguments.get(name)
        return None if value is None or arguments.get(self.cumulative) is None else Stated(name, value)

    def _workspace(self, batch: int, q_len: int | None, arguments: Arguments, pool: Pool) -> WorkspaceBytes | None:
        """Return the workspace of the native kernels for their own function; for XQA, its wrapper's reserved bytes."""
        if self._takes_batch_from_cumulative:
            return WorkspaceBytes(XQA_SEMAPHORES, 0)
        return native_workspace(
            batch=batch,
            q_len=q_len,
            q_heads=arguments["query"].shape[-2],
            kv_heads=pool.kv_heads,
            head_dim_vo=pool.head_dim_vo,
            max_seq_len=arguments["max_seq_len"],
        )

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        pool = pool_of(arguments, self._layout(arguments))
        tokens, cumulative = arguments["query"].shape[0], arguments.get(self.cumulative)
        q_len = arguments.get("q_len_per_req", 1)
        if cumulative is not None and (q_len is None or self._takes_batch_from_cumulative):
            batch = max(0, cumulative.shape[0] - 1)
            batch_from: tuple[str, ...] = (self.cumulative,)
            batch_text = f"{self.cumulative} has {cumulative.shape[0]} entries, which is a batch of {batch}"
        elif q_len is None or q_len < 1:
            raise WrongForm("q_len_per_req", f"q_len_per_req is {q_len}, without {self.cumulative}")
        else:
            batch, batch_from = tokens // q_len, ("query", "q_len_per_req")
            batch_text = f"query has {tokens} rows at q_len_per_req {q_len}, which is a batch of {batch}"
        rows = uniform_rows(batch, q_len) if cumulative is None else cumulative_rows(cumulative, batch)
        uniform = q_len if cumulative is None else None
        tables, lengths = arguments["block_tables"], arguments["seq_lens"]
        return Attention(
            arguments=arguments,
            parameters=parameters,
            batch=batch,
            batch_from=batch_from,
            batch_text=batch_text,
            spans=()
            if _is_block_sparse(arguments) or _lists_tokens(arguments)
            else paged_spans(rows, lengths, tables, pool.page_size),
            max_kv=Stated("max_seq_len", arguments["max_seq_len"]),
            max_q=self._max_q(arguments),
            q_len=uniform,
            head_dim_vo=pool.head_dim_vo,
            table="block_tables",
            cum_q=None if cumulative is None else self.cumulative,
            pool=pool,
            window_left=window_of(arguments),
            workspace=lambda: self._workspace(batch, uniform, arguments, pool),
        )


def _is_block_sparse(arguments: Arguments) -> bool:
    value = arguments.get("enable_block_sparse_attention")
    return isinstance(value, int) and bool(value)


def _lists_tokens(arguments: Arguments) -> bool:
    return _is_above_0(arguments.get("sparse_top_k"))


_PER_REQUEST = ("requests", "tokens per request", "q heads")
_PACKED = ("tokens", "q heads")
_LATENT_REQUIRED = (
    "query",
    "kv_cache",
    "workspace_buffer",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "block_tables",
    "max_seq_len",
)
_LATENT_NUMBERS = ("kv_lora_rank", "qk_rope_head_dim", "max_seq_len", "max_q_len", "sparse_mla_top_k")


@dataclass(frozen=True)
class MlaDecode(AttentionEntryPoint):
    """A batch of the first axis of `query` [batch, q_len, ...], or of the `cum_seq_lens_q` of packed queries.

    Sparse calls have no spans, since their tables hold tokens instead of pages.
    """

    name: str = "trtllm_batch_decode_with_kv_cache_mla"
    module: str | None = "flashinfer.mla"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        required = _LATENT_REQUIRED if _is_sparse(arguments) else (*_LATENT_REQUIRED, "seq_lens")
        return parameters_of(arguments, _latent_forms(arguments), required, _LATENT_NUMBERS)

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


def _latent_forms(arguments: Arguments) -> dict[str, Form]:
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
    return _is_above_0(arguments.get("sparse_mla_top_k"))


def _is_above_0(top_k: object) -> bool:
    return isinstance(top_k, int) and top_k > 0
