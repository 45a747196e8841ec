"""The distribution of a request's keys among the ranks of a server."""

from copy import copy
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case, Request, Step
from attnfuzz.reference.key_shares import KeyShares


@dataclass(frozen=True)
class Sharding(KeyShares):
    """How the ranks of a server share keys, and exchange their outputs.

    Attributes:
        ranks: The number of ranks (--decode-context-parallel-size).
        interleave: --cp-kv-cache-interleave-size, a divisor of the page size.
        all_to_all: Whether outputs and LSEs are exchanged (--dcp-comm-backend a2a), not gathered and reduced.

    """

    all_to_all: bool

    @classmethod
    def of(cls, case: Case) -> "Sharding":
        """Return the sharding of a case's server."""
        shared = case.shared_keys
        return cls(shared.ranks, shared.interleave.tokens(case.geometry.page_size), shared.all_to_all)

    def positions(self, rank: int, tokens: int) -> torch.Tensor:
        """Return the positions, among a request's first `tokens`, that a rank holds."""
        position = torch.arange(tokens)
        return position[self.rank_of(position) == rank]

    def local(self, rank: int, step: Step) -> Step:
        """Return a step with each request's number of keys on a rank."""

        def of_rank(request: Request) -> Request:
            before, after = (
                len(self.positions(rank, tokens)) for tokens in (request.kv_len - request.q_len, request.kv_len)
            )
            return replace(request, q_len=after - before, kv_len=after)

        return replace(step, requests=tuple(map(of_rank, step.requests)))

    def share(self, rank: int, tokens: SlotTokens) -> SlotTokens:
        """Return a rank's tokens, in order within each sequence."""
        share, chosen, first = copy(tokens), [], 0
        share.spans = {}
        for slot, span in tokens.spans.items():
            own = self.positions(rank, len(span)) + span.start
            share.spans[slot] = range(first, first + len(own))
            chosen.append(own)
            first += len(own)
        share.extra = range(first, first + len(tokens.extra))
        at = torch.cat([*chosen, torch.tensor(tokens.extra, dtype=torch.int64)])
        share.key, share.value = tokens.key[at], tokens.value[at]
        return share
