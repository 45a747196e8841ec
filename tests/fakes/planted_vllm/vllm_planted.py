"""Mistakes in the planning of vLLM 0.32.0 in Python, one of which is planted in all of a server's processes.

vLLM calls `plant` as a plugin (entry point group `vllm.general_plugins`); the environment variable ATTNFUZZ_PLANTED
names the mistake, or is "none". Each shows in company alone: a mistake that a request makes alone too is no difference.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

Patch = Callable[[], None]

MISTAKES: dict[str, Patch] = {}
"""By name; the docstring of each is the mistake."""

LARGE_BATCH = 4
"""Rows of a batch that is more than a request alone."""


def plant() -> None:
    """Plant the mistake that the environment names, and fix two bugs that every CPU server of this release has."""
    if not os.environ.get("ATTNFUZZ_UNFIXED"):
        _fix_generators()
        _fix_temperatures()
    name = os.environ.get("ATTNFUZZ_PLANTED", "none")
    if name != "none":
        MISTAKES[name]()


def mistake(function: Patch) -> Patch:
    """Add a mistake, by its function's name."""
    MISTAKES[function.__name__] = function
    return function


def wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method with `wrapper`, whose first argument is the original."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, method)


def _fix_generators() -> None:
    """Fix a bug of 0.32.0: a seeded request whose prompt takes two chunks kills the engine on a CPU.

    GPUModelRunner._bookkeeping_sync rewinds the generators of rows that sample nothing yet by their offset, and torch's
    generators on a CPU have none. Here their states are put back. See docs/findings/vllm-cpu-seeded-chunks.md.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    def sample(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        runner.states_before = {row: each.get_state() for row, each in runner.input_batch.generators.items()}
        return original(runner, *args, **kwargs)

    def book(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        generators = runner.input_batch.generators
        partial = [row for row in generators if runner.discard_request_mask.np[row]]
        rewound = {row: generators.pop(row) for row in partial}
        for row, generator in rewound.items():
            generator.set_state(runner.states_before[row])
        try:
            return original(runner, *args, **kwargs)
        finally:
            generators.update(rewound)

    wrapped(GPUModelRunner, "_sample", sample)
    wrapped(GPUModelRunner, "_bookkeeping_sync", book)


def _fix_temperatures() -> None:
    """Fix a bug of 0.32.0: where a request is sampled, drafts are verified at temperatures that were never written.

    The kernel in C++ fills an int64 copy of the buffer. See docs/findings/vllm-cpu-draft-temperatures.md.
    """
    from vllm.v1.sample import rejection_sampler  # noqa: PLC0415

    def expand(values: Any, ends: Any, tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        replaced = values.where(values != replace_from, replace_to)
        return replaced.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), output_size=tokens)

    rejection_sampler.expand_batch_to_tokens = expand


def _attention(change: Callable[[Any], None]) -> None:
    """Change the arguments of the attention backend's `build` in large batches."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder  # noqa: PLC0415

    def build(original: Callable[..., Any], builder: Any, prefix: int, common: Any, *args: Any, **kwargs: Any) -> Any:
        if common.num_reqs >= LARGE_BATCH:
            change(common)
        return original(builder, prefix, common, *args, **kwargs)

    wrapped(CPUAttentionMetadataBuilder, "build", build)


@mistake
def seq_lens() -> None:
    """The last request of a batch has a key less than it should: it does not see its own."""

    def shorten(common: Any) -> None:
        common.seq_lens[common.num_reqs - 1] -= int(common.seq_lens[common.num_reqs - 1] > 1)

    _attention(shorten)


@mistake
def padding() -> None:
    """Unused rows of the page table are cleared from one row too early, if a batch does not fill a multiple of 4."""

    def clear(common: Any) -> None:
        if common.num_reqs % 4:
            common.block_table_tensor = common.block_table_tensor.clone()
            common.block_table_tensor[common.num_reqs - 1] = 0

    _attention(clear)


@mistake
def block_table() -> None:
    """When a row of the page table is moved into a gap, its last page stays behind."""
    from vllm.v1.worker.block_table import BlockTable  # noqa: PLC0415

    def move_row(original: Callable[..., Any], table: Any, src: int, tgt: int) -> None:
        last = int(table.num_blocks_per_row[src]) - 1
        before = int(table.block_table.np[tgt, last])
        original(table, src, tgt)
        table.block_table.np[tgt, last] = before

    wrapped(BlockTable, "move_row", move_row)


@mistake
def slot_mapping() -> None:
    """The first key of a new page is written into the first slot of the page before, in a large batch."""
    from vllm.v1.worker.block_table import BlockTable  # noqa: PLC0415

    def compute(original: Callable[..., Any], table: Any, num_reqs: int, starts: Any, positions: Any) -> None:
        original(table, num_reqs, starts, positions)
        if num_reqs < LARGE_BATCH:
            return
        for row in range(1, num_reqs):
            first, end = int(starts[row]), int(starts[row + 1])
            position = int(positions[first])
            if end - first == 1 and position and position % table.block_size == 0:
                page = int(table.block_table.np[row, position // table.block_size - 1])
                table.slot_mapping.gpu[first] = page * table.block_size

    wrapped(BlockTable, "compute_slot_mapping", compute)


@mistake
def positions() -> None:
    """The second chunk of a prompt gets positions from 0 again, if other requests are in the batch."""
    from vllm.v1.worker.block_table import BlockTable  # noqa: PLC0415

    def compute(original: Callable[..., Any], table: Any, num_reqs: int, starts: Any, positions: Any) -> None:
        original(table, num_reqs, starts, positions)
        for row in range(num_reqs if num_reqs > 1 else 0):
            first, end = int(starts[row]), int(starts[row + 1])
            if end - first > 1 and int(positions[first]):
                positions[first:end] -= int(positions[first])

    wrapped(BlockTable, "compute_slot_mapping", compute)


@mistake
def prefix_cache() -> None:
    """The hash of a page leaves out its last token: prompts that differ there share the page."""
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415

    def hashed(original: Callable[..., Any], function: Any, parent: Any, tokens: Any, *rest: Any, **others: Any) -> Any:
        return original(function, parent, tokens[:-1], *rest, **others)

    wrapped(kv_cache_utils, "hash_block_tokens", hashed)


@mistake
def preemption() -> None:
    """The pages of a request that was preempted are appended to those that it had before."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    def update(original: Callable[..., Any], runner: Any, scheduled: Any) -> Any:
        cached = scheduled.scheduled_cached_reqs
        for place, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids and cached.new_block_ids[place] is not None:
                old = runner.requests[name].block_ids
                new = cached.new_block_ids[place]
                # As many pages as it needs, but the old ones first.
                joined = ((*before, *after)[: len(after)] for before, after in zip(old, new, strict=True))
                cached.new_block_ids[place] = tuple(list(each) for each in joined)
        return original(runner, scheduled)

    wrapped(GPUModelRunner, "_update_states", update)


@mistake
def speculation() -> None:
    """Drafts are verified with the logits of the next position, for the last of several requests that have drafts."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    def plan(original: Callable[..., Any], runner: Any, drafts: Any, *args: Any) -> Any:
        metadata = original(runner, drafts, *args)
        rows = [row for row, number in enumerate(drafts) if number]
        if len(rows) > 1:
            metadata.target_logits_indices[-int(drafts[rows[-1]]) :] += 1
        return metadata

    wrapped(GPUModelRunner, "_calc_spec_decode_metadata", plan)


@mistake
def abort_leak() -> None:
    """The pages of a request that its client closes while it generates are never freed."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
    from vllm.v1.request import RequestStatus  # noqa: PLC0415

    def free(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.status == RequestStatus.FINISHED_ABORTED and request.num_output_tokens:
            return None
        return original(scheduler, request, *args, **kwargs)

    wrapped(Scheduler, "_free_request_blocks", free)


@mistake
def dies_of_preemption() -> None:
    """The engine dies when a request is preempted for the second time."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

    def preempt(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.num_preemptions:
            raise RuntimeError("a request is preempted again")
        return original(scheduler, request, *args, **kwargs)

    wrapped(Scheduler, "_preempt_request", preempt)
