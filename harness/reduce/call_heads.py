"""Edits that leave calls with fewer heads and smaller head dims."""

from collections.abc import Iterator

from attnfuzz.harness.reduce.cuts import lower
from attnfuzz.harness.reduce.drop import Drop, without
from attnfuzz.harness.reduce.geometry import lower_dims
from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.reference.calls import CallCase


def drop_heads(case: CallCase) -> Iterator[CallCase]:
    """Fewer KV heads with their groups, the first or the last ones; then smaller groups."""
    meaning = Meaning(case)
    q_heads, kv_heads = meaning.size("q heads"), max(1, meaning.size("kv heads"))
    if not q_heads or q_heads % kv_heads:
        return
    group = q_heads // kv_heads
    for left in lower(kv_heads, 1):
        gone = kv_heads - left
        for kv, q in (
            (range(left, kv_heads), range(left * group, q_heads)),
            (range(gone), range(gone * group)),
        ):
            yield from without(meaning, [Drop({"kv heads": kv, "q heads": q})])
    for left in lower(group, 1):
        spare = frozenset(head for head in range(q_heads) if head % group >= left)
        yield from without(meaning, [Drop({"q heads": spare})])


def shrink_head_dims(case: CallCase) -> Iterator[CallCase]:
    """Smaller head dims; of a latent, each part by itself."""
    meaning = Meaning(case)
    ranks = {call.arguments.get("kv_lora_rank") for call in case.calls} - {None}
    if ranks:
        if len(ranks) == 1 and isinstance(rank := ranks.pop(), int):
            yield from without(meaning, _latent_dims(rank, meaning.size("qk dim")))
        return
    qk, vo = meaning.size("qk dim"), meaning.size("vo dim")
    for dim in lower_dims(qk):
        if qk == vo:
            yield from without(meaning, [Drop({"qk dim": range(dim, qk), "vo dim": range(dim, vo)})])
        else:
            yield from without(meaning, [Drop({"qk dim": range(dim, qk)})])
    if qk != vo:
        for dim in lower_dims(vo):
            yield from without(meaning, [Drop({"vo dim": range(dim, vo)})])


def _latent_dims(rank: int, qk: int) -> Iterator[Drop]:
    for left in lower_dims(rank):
        gone = range(left, rank)
        yield Drop({"qk dim": gone, "vo dim": gone}, scalars={"kv_lora_rank": left})
    for rope in lower_dims(qk - rank):
        yield Drop({"qk dim": range(rank + rope, qk)}, scalars={"qk_rope_head_dim": rope})


EDITS = (drop_heads, shrink_head_dims)
