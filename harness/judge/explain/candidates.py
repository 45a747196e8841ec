"""All claims about a row that it does not contradict itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from attnfuzz.harness.judge.explain.claim import Aspect, Claim
from attnfuzz.harness.judge.explain.keys import changed_keys
from attnfuzz.harness.judge.explain.lse import lse_claims
from attnfuzz.harness.judge.explain.masks import lengths, masks
from attnfuzz.harness.judge.explain.merges import merges
from attnfuzz.harness.judge.explain.other_rows import other_keys, other_queries, other_rows
from attnfuzz.harness.judge.explain.paged_claims import as_called, paged_claims
from attnfuzz.harness.judge.explain.scales import logit_factors, no_keys, output_factors, sinks, soft_cap
from attnfuzz.harness.judge.explain.support import Vote, vote
from attnfuzz.harness.judge.explain.wrong_row import WrongRow

_Source = Callable[[WrongRow], Iterator[Claim]]

_AT_ANY_LENGTH: tuple[_Source, ...] = (no_keys, output_factors, other_rows)
_ANSWERED_AGAIN: tuple[_Source, ...] = (
    as_called,
    masks,
    sinks,
    soft_cap,
    logit_factors,
    other_keys,
    paged_claims,
    other_queries,
    merges,
    lengths,
)
"""Sources whose claims each cost one attention over all keys."""

_OF_LSE_TOO: tuple[_Source, ...] = (
    as_called,
    masks,
    sinks,
    soft_cap,
    logit_factors,
    other_keys,
    paged_claims,
)
"""Sources whose claims may hold for the LSE while the output is right."""

LONG = 8192
"""Number of keys above which the claims of `_ANSWERED_AGAIN` are not tried."""


def candidates(row: WrongRow, aspect: Aspect, *, out_failed: bool) -> list[Claim]:
    """Return the claims that explain `row` better than chance, in the order of their sources.

    If the output failed too, no claim is about the LSE alone.
    """
    found = []
    for claim in _about_lse(row, out_failed=out_failed) if aspect is Aspect.LSE else _about_out(row):
        alternative = claim.answer(row)
        if alternative is not None and vote(row, alternative, aspect, tried=max(claim.tried, 2)) is Vote.FOR:
            found.append(claim)
    return found


def _about_out(row: WrongRow) -> Iterator[Claim]:
    for source in _AT_ANY_LENGTH if len(row.seen) > LONG else _ANSWERED_AGAIN + _AT_ANY_LENGTH:
        yield from source(row)
    yield from changed_keys(row)


def _about_lse(row: WrongRow, *, out_failed: bool) -> Iterator[Claim]:
    if row.lse is None:
        return
    if not out_failed:
        yield from lse_claims(row)
    if len(row.seen) <= LONG:
        for source in _OF_LSE_TOO:
            for claim in source(row):
                alternative = claim.answer(row)
                # The output of this case may be unable to distinguish the two, for instance with one key.
                in_both = alternative is None or vote(row, alternative, Aspect.OUT) is not Vote.AGAINST
                if out_failed and not in_both:
                    continue
                words = claim.words if in_both else f"{claim.words}, in the LSE alone"
                yield replace(claim, words=words, aspect=Aspect.LSE)
