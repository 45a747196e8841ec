"""The order of a batch."""

from typing import Any


def reorder_batch_to_split_decodes_and_prefills(batch: Any, scheduler_output: Any, decode_threshold: int = 1) -> bool:
    """Move requests with few tokens to the front, by swapping them."""
    moved = False
    for end in range(len(batch.req_ids)):
        few = next(
            (
                place
                for place in range(end, len(batch.req_ids))
                if scheduler_output.num_scheduled_tokens[batch.req_ids[place]] <= decode_threshold
            ),
            None,
        )
        if few is not None and few != end:
            batch.swap_states(end, few)
            moved = True
    return moved
