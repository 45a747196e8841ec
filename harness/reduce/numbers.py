"""Metadata after a drop: lengths, cumulative lengths and page ids with unchanged meaning."""

from collections.abc import Mapping

import torch

from attnfuzz.harness.calls.literal_buffers import with_content
from attnfuzz.harness.reduce.meaning import Meaning, TensorSite
from attnfuzz.harness.reduce.placed_views import with_contents
from attnfuzz.harness.reduce.units import Positions, Uncuttable, marked
from attnfuzz.kernels.meaning import Role
from attnfuzz.reference.calls import Buffer, CallCase, content_of, viewed

_MOST_KEYS = 1 << 24
"""Larger cumulative lengths are garbage."""

_MIRRORS = {"kv_seq_lens_cpu": Role.KV_LENGTHS}
"""Arguments that mirror one of this role."""

_Q_LENGTHS = "q_seq_lens_cpu"

Keys = Mapping[tuple[int, int], Positions]


def renumbered(case: CallCase, meaning: Meaning, axes: Mapping[str, Positions], keys: Keys) -> CallCase:
    """Return the case with the metadata of `meaning` adjusted to the dropped positions; tensors keep their sizes.

    Raises Uncuttable for metadata written between the calls: it is unknown which of its contents to change.
    """
    changed: dict[str, torch.Tensor] = {}
    buffers = {buffer.name: buffer for buffer in case.buffers}
    for site in meaning.sites:
        numbers = _numbers(meaning, site, axes, keys)
        if numbers is None or torch.equal(numbers, site.tensor):
            continue
        name = site.view.buffer
        if any(write.name == name for call in case.calls for write in call.writes):
            raise Uncuttable(f"{name} is written to between the calls")
        if name not in changed:
            content = content_of(buffers[name])
            # As in literal_arguments, for a buffer without content.
            empty = torch.zeros(buffers[name].size, dtype=buffers[name].dtype.torch_dtype)
            changed[name] = empty if content is None else content.clone()
        viewed(changed[name], site.view).copy_(numbers)

    def with_numbers(buffer: Buffer) -> Buffer:
        return with_content(buffer, changed[buffer.name]) if buffer.name in changed else buffer

    return with_contents(case, with_numbers) if changed else case


def flat_keys(meaning: Meaning, call: int, keys: Keys) -> frozenset[int]:
    """Return the dropped keys of a call, numbered through all its requests like its cumulative lengths."""
    site = next((site for site in meaning.of_role(Role.CUM_KV) if site.call == call), None)
    if site is None:
        return frozenset()
    firsts = site.tensor.tolist()
    own = ((request, positions) for (of_call, request), positions in keys.items() if of_call == call)
    return frozenset(
        firsts[request] + position for request, positions in own if request < len(firsts) for position in positions
    )


def _numbers(meaning: Meaning, site: TensorSite, axes: Mapping[str, Positions], keys: Keys) -> torch.Tensor | None:
    """Return the new content of a metadata tensor, or None for other tensors."""
    if site.parameter.name == _Q_LENGTHS and "tokens" in axes:
        rows = marked(axes["tokens"], meaning.tokens)
        spans = meaning.spans[site.call][: len(site.tensor)]
        fewer = [int(rows[max(0, span.first_row) : span.first_row + span.q_len].sum()) for span in spans]
        fewer += [0] * (len(site.tensor) - len(spans))
        return site.tensor - torch.tensor(fewer, dtype=site.tensor.dtype)
    match _MIRRORS.get(site.parameter.name, site.parameter.role):
        case Role.KV_LENGTHS if site.tensor.ndim == 1:
            gone = [len(keys.get((site.call, request), ())) for request in range(len(site.tensor))]
            return site.tensor - torch.tensor(gone, dtype=site.tensor.dtype)
        case Role.CUM_Q if "tokens" in axes:
            return _counted(site.tensor, marked(axes["tokens"], meaning.tokens))
        case Role.CUM_KV:
            last = int(site.tensor.max()) if site.tensor.numel() else 0
            if last > _MOST_KEYS:
                raise Uncuttable(f"{site.parameter.name} holds {last}")
            return _counted(site.tensor, marked(flat_keys(meaning, site.call, keys), max(0, last)))
        case Role.PAGE_TABLE if "pages" in axes:
            pages = meaning.size("pages")
            gone_pages = marked(axes["pages"], pages)
            ids = _counted(site.tensor, gone_pages)
            left = pages - int(gone_pages.sum())
            # The id of a dropped page must stay in range.
            return torch.where((site.tensor >= 0) & (site.tensor < pages), ids.clamp(max=left - 1), ids)
    return None


def _counted(numbers: torch.Tensor, gone: torch.Tensor) -> torch.Tensor:
    """Return numbers minus the count of dropped ones below them."""
    below = torch.cat([torch.zeros(1, dtype=torch.int64), gone.cumsum(0)])
    return numbers - below[numbers.long().clamp(0, len(gone))].to(numbers.dtype)
