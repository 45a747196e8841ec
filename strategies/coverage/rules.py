"""Rules on features, or pairs of them, that never occur, with reasons.

A backend lacks their requirements, they exclude each other by their meaning, or they are not drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, Mode, Pace
from attnfuzz.reference.device import Device
from attnfuzz.strategies.coverage.classes import HEAD_DIMS, PAGE_SIZES
from attnfuzz.strategies.coverage.features import axes
from attnfuzz.strategies.supported import capturable, head_dims, latents

Features = tuple[str, ...]


@dataclass(frozen=True)
class Lack:
    """Features that never occur with a backend: `of` its capability."""

    reason: str
    of: Callable[[Capability], Features]


@dataclass(frozen=True)
class Clash:
    """None of `these` occurs together with any of `those`, with backends for which `where` holds."""

    reason: str
    these: Features
    those: Features
    where: Callable[[Capability], bool] = lambda _: True


def named(axis: str, *values: str) -> Features:
    """The features of an axis with these values. ValueError for an unknown value."""
    wanted = tuple(f"{axis}={value}" for value in values)
    if unknown := set(wanted) - set(axes()[axis]):
        raise ValueError(f"no such feature: {', '.join(sorted(unknown))}")
    return wanted


def besides(axis: str, *values: str) -> Features:
    """All features of an axis except those with these values. ValueError for an unknown value."""
    left_out = frozenset(named(axis, *values))
    return tuple(feature for feature in axes()[axis] if feature not in left_out)


_NO_KEYS = (*named("kv len", "0"), *named("without keys", "some", "all"), *named("longest kv", "0"))
_REPLAYS = (*besides("launch", "eager"), *named("relation", "replay as eager"))
_PADDED = (*besides("padding", "none"), *named("relation", "padding enlarged"))
_CHUNKS = (*besides("chunks"), *named("relation", "chunks changed"))
_FACTORS = (*besides("K scale", "1"), *besides("V scale", "1"))
_DIFFERING = besides("V dim", "as K's")


def _unless(has: Callable[[Capability], object], features: Features) -> Callable[[Capability], Features]:
    return lambda can: () if has(can) else features


def _when(has: Callable[[Capability], object], features: Features) -> Callable[[Capability], Features]:
    return lambda can: features if has(can) else ()


def _chunked(can: Capability) -> bool:
    return can.latent and Mode.CHUNKED_PREFILL in can.modes


def _head_dims(can: Capability) -> set[str]:
    dims = [latent.rank + latent.rope for latent in latents(can) if latent] if can.latent else head_dims(can)
    return {HEAD_DIMS.of(dim) for dim in dims}


LACKS: tuple[Lack, ...] = (
    Lack("the backend does not have this mode", lambda can: besides("mode", *can.modes)),
    Lack("the backend does not take queries of this dtype", lambda can: besides("dtype", *can.dtypes)),
    Lack("the backend does not have this KV layout", lambda can: besides("layout", *can.layouts)),
    Lack("the backend does not take this query view", lambda can: besides("query view", *can.query_views)),
    Lack("the backend does not take this KV view", lambda can: besides("KV view", *can.kv_views)),
    Lack("the backend takes dense page tables only", _unless(lambda can: can.table_gaps, besides("table gap", "none"))),
    Lack(
        "a CPU has no queue to be behind with",
        _unless(lambda can: can.device is Device.CUDA, besides("pace", Pace.PROMPT)),
    ),
    Lack(
        "the backend does not have pages of this size",
        lambda can: besides("page size", *{PAGE_SIZES.of(size) for size in can.page_sizes}),
    ),
    Lack(
        "the backend does not have this head dim",
        lambda can: besides("head dim", *_head_dims(can)),
    ),
    Lack(
        "the backend does not have an fp8 KV cache",
        _unless(lambda can: can.fp8_kv, besides("KV dtype", "that of the queries")),
    ),
    Lack("the backend does not have windows", _unless(lambda can: can.windows, besides("window", "none"))),
    Lack("the backend does not have sinks", _unless(lambda can: can.sinks, named("sinks", "yes"))),
    Lack("the backend does not have soft caps", _unless(lambda can: can.soft_cap, named("soft cap", "yes"))),
    Lack("the backend does not scale K and V", _unless(lambda can: can.kv_scales, _FACTORS)),
    Lack("the backend is not padded", _unless(lambda can: can.padding, _PADDED)),
    Lack("the backend is not captured in graphs", _unless(capturable, _REPLAYS)),
    Lack("the backend does not take requests without KV", _unless(lambda can: can.empty_kv, _NO_KEYS)),
    Lack(
        "the backend does not take fewer keys than queries",
        _unless(lambda can: can.kv_shorter_than_q, named("prefix", "fewer keys than queries")),
    ),
    Lack(
        "the backend needs equal head dims",
        _unless(lambda can: can.unequal_head_dims or can.latent, _DIFFERING),
    ),
    Lack(
        "the backend has latents: K is the whole one, V a part",
        _when(lambda can: can.latent, besides("V dim", "smaller")),
    ),
    Lack("the backend has latents: one KV head", _when(lambda can: can.latent, besides("KV heads", "1"))),
    Lack("the backend has latents", _when(lambda can: can.latent, named("latent", "none"))),
    Lack("the backend does not have latents", _unless(lambda can: can.latent, besides("latent", "none"))),
    Lack(
        "not drawn: no served model without latents has such a group of heads",
        _unless(lambda can: can.latent or can.buckets, named("group", "another", "over 16")),
    ),
    Lack("nothing but a chunked prefill of latents is cut into chunks", _unless(_chunked, _CHUNKS)),
)


_REPLAYED = besides("launch", "eager")
_RAGGED = besides("q lens", "the same")
_REQUESTS = named("padding", "fewer requests than real", "as many requests, or more")


def _modes(*modes: Mode) -> tuple[str, ...]:
    return named("mode", *modes)


_UNIFORM = _modes(*(mode for mode in Mode if mode.uniform))
_SPECULATIVE = _modes(*SPECULATIVE)
_PREFILLS = _modes(*(mode for mode in Mode if not mode.speculative))


def _latent(can: Capability) -> bool:
    return can.latent


def _own_tokens(can: Capability) -> bool:
    """Whether every request has at least as many keys as queries, and at least one."""
    return can.latent or not (can.kv_shorter_than_q or can.empty_kv)


def _free(can: Capability) -> bool:
    """Whether geometries are drawn freely; for buckets, the costs are known from each."""
    return not can.buckets


def _has_served_pages(can: Capability) -> bool:
    return _free(can) and can.latent and not {32, 64}.isdisjoint(can.page_sizes)


def _short_pages(can: Capability) -> bool:
    """Whether geometries are drawn freely, and no page is as long as a KV that counts as long."""
    return _free(can) and max(can.page_sizes, default=0) <= 128


def _is_largest(dim: int) -> Callable[[Capability], bool]:
    return lambda can: _free(can) and max(head_dims(can), default=0) == dim


def _all_drafts(can: Capability) -> bool:
    return Mode.DRAFT_EXTEND not in can.modes


MEANING: tuple[Clash, ...] = (
    Clash("a decode has one query per request", _modes(Mode.DECODE), (*besides("longest q", "1"), *besides("drafts"))),
    Clash("a decode's query has a key or none", _modes(Mode.DECODE), named("prefix", "fewer keys than queries")),
    Clash("the mode gives every request as many queries", _UNIFORM, _RAGGED),
    Clash("every request of a draft extend has queries", _modes(Mode.DRAFT_EXTEND), named("q lens", "an idle request")),
    Clash("only a draft extend has accept lengths", besides("mode", Mode.DRAFT_EXTEND), besides("accepted")),
    Clash("a prefill has no drafts", _PREFILLS, besides("drafts")),
    Clash("graphs do not hold prefills", _PREFILLS, _REPLAYED),
    Clash("only a chunked prefill is cut into chunks", besides("mode", Mode.CHUNKED_PREFILL), besides("chunks")),
    Clash("the mode is padded by whole requests", _UNIFORM, named("padding", "tokens")),
    Clash("a prefill is padded by tokens", _PREFILLS, _REQUESTS),
    Clash("a latent prefill attends to its own tokens", _PREFILLS, _NO_KEYS, _latent),
    Clash("a latent prefill attends to its own tokens", _PREFILLS, named("prefix", "fewer keys than queries"), _latent),
    Clash(
        "a prefill's keys outnumber its queries",
        named("longest q", "over 16"),
        named("longest kv", "1 to 16"),
        _own_tokens,
    ),
    Clash("there is only one request", named("batch", "1"), (*_RAGGED, *named("slots", "permuted"))),
    Clash("one request has keys or not", named("batch", "1"), named("without keys", "some")),
    Clash("a chunk without its request is no chunk", named("batch", "1"), named("chunks", "one request ends early")),
    Clash("there are not fewer requests than one", named("batch", "1"), named("padding", "fewer requests than real")),
    Clash("no request has keys", named("without keys", "all"), (*besides("kv len", "0"), *besides("prefix"))),
    Clash("no request has keys", named("without keys", "all"), besides("longest kv", "0")),
    Clash("no request has keys", named("longest kv", "0"), (*besides("kv len", "0"), *besides("prefix"))),
    Clash("some request has keys", besides("without keys", "all"), named("longest kv", "0")),
    Clash("every request has keys", named("without keys", "none"), named("kv len", "0")),
    Clash(
        "a window cuts off keys if there are some",
        named("window", "cuts keys off"),
        (*named("without keys", "all"), *named("longest kv", "0")),
    ),
    Clash("queries number 1 in each request", named("longest q", "1"), (*named("q lens", "ragged"),)),
    Clash("one query has a key or none", named("longest q", "1"), named("prefix", "fewer keys than queries")),
    Clash("part of the drafts is more than one", named("longest q", "1"), named("accepted", "part")),
    Clash("two drafts are both accepted, or one is", named("drafts", "1 to 2"), named("accepted", "part")),
    Clash(
        "without a prefix there are no keys before the queries", named("chunks", "no prefix"), named("prefix", "yes")
    ),
    Clash(
        "a page of one token is full",
        named("page size", "1"),
        named("kv len", "within a page", "one page", "several pages"),
    ),
    Clash("a page of two tokens is full, or holds one", named("page size", "2"), named("kv len", "within a page")),
    Clash(
        "the first step has no past",
        named("steps", "one"),
        (*named("past", "grown", "handed on"), *named("launch", "replayed again", "captured late")),
    ),
    Clash("a tail of poison needs a page of poison", named("table tail", "poison"), named("spare pages", "none")),
    Clash(
        "K and V share a pool only if their head dims are equal", besides("V dim", "as K's"), named("KV view", "paired")
    ),
    Clash(
        "which pages slots share would change",
        named("relation", "pages relabelled"),
        named("page order", "shared_prefix"),
    ),
    Clash(
        "a latent of rank 512 is larger",
        named("latent", "rank 512"),
        besides("head dim", "another multiple of 16", "another"),
    ),
)

_FEW_DRAFTS = "not drawn: servers draft two tokens or more"
_MANY_DRAFTS = "not drawn: servers draft 16 tokens at most"
_LONG_AND_LONG = "not drawn: a long KV and a long prompt cost too much"
_WIDE_AND_LONG = "not drawn: many requests and a long prompt cost too much"
_MANY_HEADS = "not drawn: this many heads cost too much"
_LARGEST_DIM = "the backend does not have larger head dims"
_BUCKET = "not drawn: batches are padded to 64 requests at most"
_PROMPTS = "not drawn: no prompt is as long"
_SERVED = "not drawn: only served models have this many heads"
_MORE_THAN_DRAFTS = "there are as many queries as drafts at most"
_OF_ALL_DRAFTS = "the backend has no draft extend: all drafts are queries"
_OTHER_PAGES = besides("page size", "32", "64")
_UP_TO_8 = named("drafts", "5", "6", "7", "8")

NOT_DRAWN: tuple[Clash, ...] = (
    Clash(_MORE_THAN_DRAFTS, named("drafts", "1 to 2"), besides("longest q", "1", "2")),
    Clash(_MORE_THAN_DRAFTS, named("drafts", "3", "4"), besides("longest q", "1", "2", "3 to 4")),
    Clash(_MORE_THAN_DRAFTS, _UP_TO_8, named("longest q", "9 to 16", "over 16")),
    Clash(_MANY_DRAFTS, _SPECULATIVE, named("longest q", "over 16")),
    Clash(_FEW_DRAFTS, _modes(Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2), named("longest q", "1")),
    Clash(_FEW_DRAFTS, named("accepted", "all"), named("longest q", "1")),
    Clash(_OF_ALL_DRAFTS, named("drafts", "1 to 2"), besides("longest q", "2"), _all_drafts),
    Clash(_OF_ALL_DRAFTS, named("drafts", "3", "4"), besides("longest q", "3 to 4"), _all_drafts),
    Clash(_OF_ALL_DRAFTS, _UP_TO_8, besides("longest q", "5 to 8"), _all_drafts),
    Clash(_OF_ALL_DRAFTS, named("drafts", "over 8"), besides("longest q", "9 to 16"), _all_drafts),
    Clash(_LONG_AND_LONG, named("longest kv", "over 1000"), named("longest q", "over 16"), _short_pages),
    *(
        Clash(_LARGEST_DIM, named("head dim", str(dim)), named("V dim", "larger"), _is_largest(dim))
        for dim in (64, 128, 256, 512)
    ),
    Clash("not drawn: no smaller head dim", named("head dim", "8"), named("V dim", "smaller")),
    Clash(_MANY_HEADS, named("KV heads", "over 4"), named("group", "3", "5", "16"), _free),
    Clash(_MANY_HEADS, named("KV heads", "3 to 4"), named("group", "8", "16"), _free),
    Clash(_WIDE_AND_LONG, named("batch", "9 to 16", "17 to 32", "over 32"), named("longest q", "over 16")),
    Clash(_BUCKET, named("batch", "over 32"), named("padding", "as many requests, or more")),
    Clash(_PROMPTS, named("chunks", "no prefix"), named("longest kv", "65 to 256", "257 to 1000", "over 1000")),
    Clash(_SERVED, named("group", "over 16"), named("latent", "smaller"), _free),
    Clash(_MANY_HEADS, named("group", "over 16"), besides("batch", "1", "2"), _free),
    Clash(_MANY_HEADS, named("group", "over 16"), named("longest q", "over 16"), _free),
    Clash(_MANY_HEADS, named("group", "over 16"), named("longest kv", "257 to 1000", "over 1000"), _short_pages),
    Clash(_SERVED, named("group", "over 16"), besides("head dim", "another multiple of 16"), _free),
    Clash(_SERVED, named("group", "over 16"), _OTHER_PAGES, _has_served_pages),
)
