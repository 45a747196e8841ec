"""The model of an engine's server: the query, key and value of a token follow from its id and position."""

from collections.abc import Sequence
from typing import Any

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.queries import key_dim
from attnfuzz.kernels.planning.slot_tokens import stream_of
from attnfuzz.kernels.vllm.model import LayerInputs, Model
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary
from attnfuzz.reference.case import Case
from attnfuzz.reference.chance import TokenRun
from attnfuzz.reference.magnitudes import at_magnitude
from attnfuzz.reference.values import Operand, draw_runs


class EngineModel(Model):
    """A model whose forwards are not those of the case's steps.

    Attributes:
        queries: The queries of all tokens [n, q_heads, head_dim], rounded if they are quantised.

    """

    def __init__(
        self, loaded: Any, case: Case, bench: Bench, pool: VllmPool, layer: Any, vocabulary: Vocabulary
    ) -> None:
        super().__init__(loaded, case, bench, pool, layer)
        self._words = vocabulary
        tokens, geometry = pool.paged.tokens, case.geometry
        runs = [TokenRun(stream_of(0, slot), len(span)) for slot, span in tokens.spans.items()]
        runs.append(TokenRun(stream_of(0), len(tokens.extra)))
        drawn = draw_runs(case.values, Operand.QUERY, runs, geometry.q_heads, key_dim(case), seed=case.seed)
        drawn = at_magnitude(drawn, case.magnitude, Operand.QUERY, geometry.dtype)
        self.queries = self._quantisation.rounded(drawn.to(geometry.dtype.torch_dtype))

    def begin(self, index: int) -> None:
        """Do nothing: queries follow from the tokens."""

    def _embed(self, ids: Sequence[int], positions: Sequence[int]) -> LayerInputs:
        rows = [self._words.row(token, position) for token, position in zip(ids, positions, strict=True)]
        return LayerInputs(self.queries[rows], *self._tokens(rows))
