"""The run of FlashInfer's planned MLA wrapper: latents on pages, in one part, or apart from their rotated elements."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from attnfuzz.harness.dumps.planned_lengths import PlannedLengths
from attnfuzz.kernels.meaning import Parameter
from attnfuzz.kernels.meaning.call_pool import Pool, pool_of_one
from attnfuzz.kernels.meaning.entry_point import Role
from attnfuzz.kernels.meaning.forms import Form, WrongForm, parameters_of

_PAIRS: Final[Mapping[str, tuple[str, str]]] = {"query": ("q_nope", "q_pe"), "kv_cache": ("ckv_cache", "kpe_cache")}
"""Two arguments of a run that may stand for one."""


@dataclass(frozen=True)
class PlannedLatents(PlannedLengths):
    """The run of BatchMLAPagedAttentionWrapper, planned with lists of pages and lengths.

    Its query is [tokens, heads, rank + rope], its pool [pages, slots, rank + rope], or either is a pair of [..., rank]
    and [..., rope].
    """

    caches: ClassVar[tuple[str, ...]] = ("kv_cache", "ckv_cache", "kpe_cache")

    refused: ClassVar[tuple[str, ...]] = (
        "return_lse_base_on_e",
        "kv_len",
        "page_table",
        "o_scale",
        "ckv_scale",
        "ckv_scale_arr",
        "kpe_scale",
        "sinks",
        "skip_softmax_threshold_scale_factor",
        "bmm1_scale",
        "bmm2_scale",
    )

    def canonical(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Make a pair of each two arguments that stand for one."""
        found = {name: value for name, value in known.items() if name not in {"q_nope", "q_pe", *self.caches[1:]}}
        for name, parts in _PAIRS.items():
            if all(known.get(part) is not None for part in parts):
                found[name] = [known[part] for part in parts]
        return found

    def implied(self, plan: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the layouts and the LSE of a plan of flat lists: deprecated, it takes them from each run."""
        layouts = {
            f"{name}_layout": "split" if isinstance(run.get(name), list | tuple) or parts[0] in run else "packed"
            for name, parts in _PAIRS.items()
        }
        lse = {"lse_mode": "base2"} if run.get("return_lse") and not run.get("return_lse_base_on_e") else {}
        return {name: value for name, value in (layouts | lse).items() if plan.get(name) in (None, "none")}

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        if arguments.get("lse_mode") == "basee":
            raise WrongForm("lse_mode", "its LSE is in base e")
        forms = {
            "out": Form(Role.OUT, (("tokens", "q heads", "vo dim"),)),
            "lse": Form(Role.LSE, (("tokens", "q heads"),)),
        }
        whole = {"query": ("tokens", "q heads"), "kv_cache": ("pages", "slots")}
        for (name, axes), role in zip(whole.items(), (Role.QUERY, Role.CACHE), strict=True):
            if isinstance(arguments.get(name), list | tuple):
                forms |= {
                    f"{name}[{part}]": Form(role, ((*axes, dim),)) for part, dim in enumerate(("vo dim", "rope dim"))
                }
            else:
                forms[name] = Form(role, ((*axes, "qk dim"),))
        return parameters_of(arguments, forms, ("query", "kv_cache", "out", self.indptr, self.indices, self.last))

    def _pool(self, arguments: Mapping[str, Any]) -> Pool:
        cache = arguments["kv_cache"]
        latents = cache[0] if isinstance(cache, list | tuple) else cache
        return pool_of_one("kv_cache", latents.unsqueeze(2), "NHD")
