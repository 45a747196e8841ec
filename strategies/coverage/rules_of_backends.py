"""What does not occur with a backend because of what it lacks."""

from collections.abc import Callable

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, Pace
from attnfuzz.reference.device import Device
from attnfuzz.strategies.coverage.classes import head_dim_class, page_size_class
from attnfuzz.strategies.coverage.rules import Features, Lack, besides, named
from attnfuzz.strategies.supported import capturable, head_dims, latents

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
    return {head_dim_class(dim) for dim in dims}


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
        lambda can: besides("page size", *{page_size_class(size) for size in can.page_sizes}),
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
