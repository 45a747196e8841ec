"""Decode against a paged KV cache: trtllm_batch_decode_with_kv_cache, and the XQA entry point that it may go to."""

from dataclasses import dataclass

from attnfuzz.kernels.entry_points.attention import Attention, Stated, native_workspace
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.entry_points.entry_point import Arguments, Parameter, Role
from attnfuzz.kernels.entry_points.forms import (
    TOKEN_LSE,
    WORKSPACE,
    Form,
    WrongForm,
    parameters_of,
    sinks_forms,
    window_of,
)
from attnfuzz.kernels.entry_points.pool import Pool, pool_forms, pool_of
from attnfuzz.kernels.entry_points.spans import cumulative_rows, paged_spans, uniform_rows
from attnfuzz.kernels.ops_table import WorkspaceBytes

_XQA_SEMAPHORES = 8 << 20
"""Bytes that xqa_batch_decode_with_kv_cache reserves at the beginning of its workspace."""
_REQUIRED = ("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len")
_NUMBERS = ("max_seq_len", "max_q_len", "q_len_per_req", "window_left")


@dataclass(frozen=True)
class PagedDecode(AttentionEntryPoint):
    """The batch is the query rows over `q_len_per_req`, or what the q lengths in `cumulative` say where that is None.

    Block-sparse calls, whose metadata is told apart by KV heads, have no spans.
    """

    name: str = "trtllm_batch_decode_with_kv_cache"
    module: str | None = "flashinfer.decode"
    layout: str = "HND"
    cumulative: str = "cum_seq_lens_q"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
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
        """Whatever `q_len_per_req` is; of the other entry point, whose default is 1, it has to be None for that."""
        return self.cumulative == "q_cu_seq_lens"

    def _layout(self, arguments: Arguments) -> str:
        return str(arguments.get("kv_layout", self.layout))

    def _max_q(self, arguments: Arguments) -> Stated | None:
        """The stated longest q length, where q lengths differ: XQA's wrapper has no argument of its own for it."""
        name = "q_len_per_req" if self._takes_batch_from_cumulative else "max_q_len"
        value = arguments.get(name)
        return None if value is None or arguments.get(self.cumulative) is None else Stated(name, value)

    def _workspace(self, batch: int, q_len: int | None, arguments: Arguments, pool: Pool) -> WorkspaceBytes | None:
        """What the native kernels use of the function that they implement; of XQA's, what its wrapper sets apart."""
        if self._takes_batch_from_cumulative:
            return WorkspaceBytes(_XQA_SEMAPHORES, 0)
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
            spans=() if _is_block_sparse(arguments) else paged_spans(rows, lengths, tables, pool.page_size),
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
