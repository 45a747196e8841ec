"""The keys of a request on each rank of a server."""

from copy import copy
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case, Request, Step
from attnfuzz.reference.key_shares import KeyShares


@dataclass(frozen=True)
class Sharding(KeyShares):
    """How the ranks of a server share keys, and exchange their outputs.

    Attributes:
        ranks: Their number (--decode-context-parallel-size).
        interleave: --cp-kv-cache-interleave-size, a divisor of a page.
        all_to_all: Whether outputs and LSE are exchanged at once (--dcp-comm-backend a2a), not gathered and reduced.

    """

    all_to_all: bool

    @classmethod
    def of(cls, case: Case) -> "Sharding":
        """The choices of a case's server."""
        shared = case.shared_keys
        return cls(shared.ranks, shared.interleave.tokens(case.geometry.page_size), shared.all_to_all)

    def positions(self, rank: int, tokens: int) -> torch.Tensor:
        """The positions that lie on a rank, of a request's first `tokens`."""
        position = torch.arange(tokens)
        return position[self.rank_of(position) == rank]

    def local(self, rank: int, step: Step) -> Step:
        """A step with the lengths that a rank has of it."""

        def of_rank(request: Request) -> Request:
            before, after = (
                len(self.positions(rank, tokens)) for tokens in (request.kv_len - request.q_len, request.kv_len)
            )
            return replace(request, q_len=after - before, kv_len=after)

        return replace(step, requests=tuple(map(of_rank, step.requests)))

    def share(self, rank: int, tokens: SlotTokens) -> SlotTokens:
        """The tokens of a rank, those of a slot in order."""
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
