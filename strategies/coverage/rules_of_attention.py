"""Rules of attention for features, or pairs of them, that never occur, with reasons."""

from collections.abc import Callable, Iterable
from functools import partial

from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mask, Mode
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.chosen import impossible_features
from attnfuzz.reference.features.classes import GROUPS, HEAD_DIMS
from attnfuzz.reference.features.geometry import beside_windows
from attnfuzz.strategies.coverage.rules import Clash, Features, Holds, Lack, besides, clash
from attnfuzz.strategies.supported import head_dims, latents

_clash = partial(clash, TABLE.axes)
_besides = partial(besides, TABLE.axes)


def _unsupported(axis: str, supported: Callable[[Capability], Iterable[str]], can: Capability) -> Features:
    """Return the features of an axis that no case of a backend has."""
    return _besides(axis, supported(can))


def _head_dims(can: Capability) -> set[str]:
    dims = [latent.rank + latent.rope for latent in latents(can) if latent] if can.latent else head_dims(can)
    return {HEAD_DIMS.of(dim) for dim in dims}


def _latent(can: Capability) -> bool:
    return can.latent


def _own_tokens(can: Capability) -> bool:
    """Return whether every request has at least one key, and at least as many keys as queries."""
    return can.latent or not (can.kv_shorter_than_q or can.takes_empty_kv)


def _free(can: Capability) -> bool:
    """Return whether geometries are drawn freely. For buckets, the cost of each geometry is known."""
    return not can.buckets


def _short_pages(can: Capability) -> bool:
    """Return whether geometries are drawn freely, and no page is as long as a KV that counts as long."""
    return _free(can) and max(can.page_sizes, default=0) <= 128


def _short_pages_of_attention(can: Capability) -> bool:
    return _short_pages(can) and not can.writes


def _alone(name: str, extreme: Callable[[Iterable[int]], int]) -> Holds:
    """Return whether geometries are free, and their largest or smallest head dim is the only one of this class."""

    def holds(can: Capability) -> bool:
        dims = head_dims(can)
        return _free(can) and bool(dims) and {dim for dim in dims if HEAD_DIMS.of(dim) == name} == {extreme(dims)}

    return holds


def _windowless(mask: Mask) -> Holds:
    return lambda can: not beside_windows(can, mask)


def _in_halves(group: str) -> Holds:
    """Return whether no bucket with such a group of query heads has a number of heads that four ranks can divide."""

    def holds(can: Capability) -> bool:
        heads = [pair for bucket in can.buckets for pair in bucket.heads if GROUPS.of(pair[0] // pair[1]) == group]
        return bool(can.shared_keys) and all(query % 4 for query, _ in heads)

    return holds


def _unscaled(can: Capability) -> bool:
    """Return whether some KV caches have scales, but not those of the queries' dtype."""
    return bool(can.kv_scales) and not any(map(can.scales, can.dtypes))


def _all_drafts(can: Capability) -> bool:
    return Mode.DRAFT_EXTEND not in can.modes


_CUTTING = "window=none|cuts keys off"
_LONG_PROMPT = "longest q=17 to 64|over 64"
_NO_KEYS = "kv len=0; without keys=some|all; longest kv=0"

LACKS: tuple[Lack, ...] = (
    *(Lack(row.lack, partial(_unsupported, row.name, row.supported)) for row in TABLE.rows if row.supported),
    Lack("the backend does not have this head dim", lambda can: _besides("head dim", _head_dims(can))),
    Lack(
        "left out: each case has other features, or none of these",
        lambda can: tuple(impossible_features(TABLE, can.always, can.never)),
    ),
)


_REPLAYED = "launch!=eager"
_RAGGED = "q lens!=the same"
_SCALED_UP = "magnitude!=plain"
_FEWER_KEYS = "prefix=fewer keys than queries"
_DRAFTED = f"mode={'|'.join(mode for mode in Mode if mode.speculative and mode is not Mode.DECODE)}"
_UNIFORM = f"mode={'|'.join(mode for mode in Mode if mode.uniform)}"
_SPECULATIVE = f"mode={'|'.join(mode for mode in Mode if mode.speculative)}"
_PREFILLS = f"mode={'|'.join(mode for mode in Mode if not mode.speculative)}"

MEANING: tuple[Clash, ...] = (
    *(_clash(*clash) for row in TABLE.rows for clash in row.clashes),
    _clash("a decode has one query per request", "mode=decode", "longest q!=1; drafts"),
    _clash("a decode's query has a key or none", "mode=decode", _FEWER_KEYS),
    _clash("a draft model decodes after a prefix", "mode=draft_decode", f"prefix!=yes; {_NO_KEYS}; kv len=1"),
    _clash("a draft decode is one of several drafts", "mode=draft_decode", "drafts"),
    _clash("an asynchronous server's drafts are those of a draft model", "asynchronous=yes", "drafts=1 to 2"),
    _clash("the mode gives every request as many queries", _UNIFORM, _RAGGED),
    _clash("every request of a draft extend has queries", "mode=draft_extend", "q lens=an idle request"),
    _clash("only a draft extend has accept lengths", "mode!=draft_extend", "accepted"),
    _clash("a prefill has no drafts", _PREFILLS, "drafts"),
    _clash("graphs do not hold prefills", _PREFILLS, _REPLAYED),
    _clash("only a chunked prefill is cut into chunks", "mode!=chunked_prefill", "chunks"),
    _clash("the mode is padded by whole requests", _UNIFORM, "padding=tokens"),
    _clash("a prefill is padded by tokens", _PREFILLS, "padding=fewer requests than real|as many requests, or more"),
    _clash("a latent prefill attends to its own tokens", _PREFILLS, _NO_KEYS, _latent),
    _clash("a latent prefill attends to its own tokens", _PREFILLS, _FEWER_KEYS, _latent),
    _clash("a prefill's keys outnumber its queries", _LONG_PROMPT, "longest kv=1 to 16", _own_tokens),
    _clash("a prefill's keys outnumber its queries", "longest q=over 64", "longest kv=17 to 64", _own_tokens),
    _clash("there is only one request", "batch=1", f"{_RAGGED}; slots=permuted"),
    _clash("one request has keys or not", "batch=1", "without keys=some"),
    _clash("a chunk without its request is no chunk", "batch=1", "chunks=one request ends early"),
    _clash("there are not fewer requests than one", "batch=1", "padding=fewer requests than real"),
    _clash("no request has keys", "without keys=all", "kv len!=0; prefix"),
    _clash("no request has keys", "without keys=all", "longest kv!=0"),
    _clash("no request has keys", "longest kv=0", "kv len!=0; prefix"),
    _clash("some request has keys", "without keys!=all", "longest kv=0"),
    _clash("every request has keys", "without keys=none", "kv len=0"),
    _clash("a window cuts off keys if there are some", "window=cuts keys off", "without keys=all; longest kv=0"),
    _clash("a page leaves a window if there is one", "tombstones!=none", "window=none; without keys=all; longest kv=0"),
    _clash(
        "no page leaves a window that is longer than all keys",
        "tombstones!=none",
        "window=longer than all keys",
        lambda can: not can.window_tail,
    ),
    _clash("tokens that are not stored have left the window", "window tail=yes", "tombstones=none; window=none"),
    _clash("the groups of a pool store the same tokens", "window tail=yes", "other group!=none"),
    _clash("pages of one token are not halved", "page size=1", "other group=more_heads|shorter_pages"),
    _clash("one head is not halved", "KV heads=1", "other group=fewer_heads"),
    _clash("tensors of scales are not shared", "scales per!=tensor", "other group!=none"),
    _clash("drafts are a tree in a verify step", "mask=tree", "mode!=target_verify"),
    *(
        _clash("the backend has no windows beside this mask", f"mask={mask}", "window!=none", _windowless(mask))
        for mask in Mask
    ),
    _clash("queries number 1 in each request", "longest q=1", "q lens=ragged"),
    _clash("one query has a key or none", "longest q=1", _FEWER_KEYS),
    _clash("part of the drafts is more than one", "longest q=1", "accepted=part"),
    _clash("two drafts are both accepted, or one is", "drafts=1 to 2", "accepted=part"),
    _clash("without a prefix there are no keys before the queries", "chunks=no prefix", "prefix=yes"),
    _clash("a page of one token is full", "page size=1", "kv len=within a page|one page|several pages"),
    _clash("a page of two tokens is full, or holds one", "page size=2", "kv len=within a page"),
    _clash("only fp8 caches have scales", "K scale!=1; V scale!=1", "KV dtype=that of the queries", _unscaled),
    _clash("only beside FP8 caches are queries kept or not", "kept queries=yes", "KV dtype!=float8_e4m3"),
    _clash("queries are kept if head dims are powers of two", "kept queries=yes", "head dim=another multiple of 16"),
    _clash("queries are kept if head dims are powers of two", "kept queries=yes", "head dim=another"),
    _clash("queries are kept if scales are powers of two", "kept queries=yes", "K scale=0|below 0; V scale=0|below 0"),
    _clash("only quantised caches have scales per head", "scales per!=tensor", "KV dtype=that of the queries"),
    _clash("blocks are those of NVFP4", "scales per=block", "KV dtype!=nvfp4"),
    _clash("NVFP4 has scales of blocks", "scales per!=block", "KV dtype=nvfp4"),
    _clash("only scales of blocks are swizzled", "scales per!=block", "scales of blocks=swizzled"),
    _clash("swizzled scales are those of groups of slots", "scales of blocks=swizzled", "page size=1|2"),
    _clash("scales per head include that of the tensor", "scales per=head|token_head", "K scale!=1; V scale!=1"),
    _clash("scales of blocks are positive", "scales per=block", "K scale=0|below 0; V scale=0|below 0"),
    _clash("no scale follows from numbers that are not finite", "scales per=token_head|block", "values=extreme"),
    _clash("quantised caches have scales instead of magnitudes", _SCALED_UP, "KV dtype!=that of the queries"),
    _clash("K and V have either scales or magnitudes", _SCALED_UP, "K scale!=1; V scale!=1; scales per!=tensor"),
    _clash("drafts are interleaved by tokens", "interleave!=token", f"{_DRAFTED}; drafts; accepted"),
    *(
        _clash("each rank has whole query heads", "ranks=four", f"group={name}", _in_halves(name))
        for name in GROUPS.names
    ),
    _clash("an idle step is beside others", "steps=one", "idle step!=none"),
    _clash("the first step has no past", "steps=one", "past=grown|handed on; launch=replayed again|captured late"),
    _clash("a tail of poison needs a page of poison", "table tail=poison", "spare pages=none"),
    _clash("K and V share a pool only if their head dims are equal", "V dim!=as K's", "KV view=paired"),
    _clash("an argument that is left out has its default", "other argument=softmax scale left out", "softmax scale!=1"),
    _clash("an argument that is left out has its default", "other argument=K scale left out", "K scale!=1"),
    _clash("an argument that is left out has its default", "other argument=V scale left out", "V scale!=1"),
    _clash("an argument that is left out has its default", "other argument=window left out", "window!=none"),
    _clash("an argument that is left out has its default", "other argument=soft cap left out", "soft cap=yes"),
    _clash("only a window of all keys may be longer", f"other argument={ArgumentForm.WINDOW_FAR}", _CUTTING),
    _clash("a soft cap below 0 is none", "other argument=soft cap below 0", "soft cap=yes"),
    _clash("there are no sinks to pass", "tensor argument=sinks in 16 bits", "sinks=none"),
    _clash("which pages slots share would change", "relation=pages relabelled", "page order=shared_prefix"),
    _clash("a latent of rank 512 is larger", "latent=rank 512", "head dim!=another multiple of 16|another"),
)

_MANY_DRAFTS = "not drawn: servers draft 16 tokens at most"
_FEW_DRAFTS = "not drawn: servers draft two tokens or more"
_LONG_AND_LONG = "not drawn: a long KV and a long prompt cost too much"
_WIDE_AND_LONG = "not drawn: many requests and a long prompt cost too much"
_STEPS_AND_LONG = "not drawn: several steps and a long prompt cost too much"
_MANY_HEADS = "not drawn: this many heads cost too much"
_LARGEST_DIM = "the backend does not have larger head dims"
_SMALLEST_DIM = "not drawn: no smaller head dim"
_BUCKET = "not drawn: batches are padded to 64 requests at most"
_PROMPTS = "not drawn: no prompt is as long"
_MORE_THAN_DRAFTS = "there are as many queries as drafts at most"
_OF_ALL_DRAFTS = "the backend has no draft extend: all drafts are queries"

NOT_DRAWN: tuple[Clash, ...] = (
    _clash(_MORE_THAN_DRAFTS, "drafts=1 to 2", "longest q!=1|2"),
    _clash(_MORE_THAN_DRAFTS, "drafts=3|4", "longest q!=1|2|3 to 4"),
    _clash(_MORE_THAN_DRAFTS, "drafts=5|6|7|8", "longest q=9 to 16|17 to 64|over 64"),
    _clash(_MANY_DRAFTS, _SPECULATIVE, _LONG_PROMPT),
    _clash(_FEW_DRAFTS, "mode=target_verify|draft_extend_v2", "longest q=1"),
    _clash(_FEW_DRAFTS, "accepted=all", "longest q=1"),
    _clash(_OF_ALL_DRAFTS, "drafts=1 to 2", "longest q!=2", _all_drafts),
    _clash(_OF_ALL_DRAFTS, "drafts=3|4", "longest q!=3 to 4", _all_drafts),
    _clash(_OF_ALL_DRAFTS, "drafts=5|6|7|8", "longest q!=5 to 8", _all_drafts),
    _clash(_OF_ALL_DRAFTS, "drafts=over 8", "longest q!=9 to 16", _all_drafts),
    _clash(_LONG_AND_LONG, "longest kv=over 1000", _LONG_PROMPT, _short_pages_of_attention),
    *(_clash(_LARGEST_DIM, f"head dim={name}", "V dim=larger", _alone(name, max)) for name in HEAD_DIMS.names),
    *(_clash(_SMALLEST_DIM, f"head dim={name}", "V dim=smaller", _alone(name, min)) for name in HEAD_DIMS.names),
    _clash(_MANY_HEADS, "KV heads=over 4", "group=3|5|16|another|over 16", _free),
    _clash(_MANY_HEADS, "KV heads=3 to 4", "group=8|16|another|over 16", _free),
    _clash(_WIDE_AND_LONG, "batch=9 to 16|17 to 32|over 32", _LONG_PROMPT),
    _clash(_WIDE_AND_LONG, "batch=3 to 4|5 to 8", "longest q=over 64"),
    _clash(_STEPS_AND_LONG, "steps!=one; relation=replay as eager", "longest q=over 64"),
    _clash(_BUCKET, "batch=over 32", "padding=as many requests, or more"),
    _clash(_PROMPTS, "chunks=no prefix", "longest kv=over 1000", lambda can: not can.writes),
)
