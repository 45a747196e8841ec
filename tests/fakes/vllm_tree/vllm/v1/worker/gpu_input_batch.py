"""The requests of a model runner, and their rows."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class CachedRequestState:
    """A request."""

    req_id: str
    prompt_token_ids: list[int]
    mm_features: list[Any]
    sampling_params: Any
    generator: Any
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    output_token_ids: list[int]

    @property
    def num_tokens(self) -> int:
        """The tokens that are known."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)


class Buffer:
    """A tensor on the host, and one on the device."""

    def __init__(self, *size: int, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype)
        self.gpu = torch.zeros_like(self.cpu, device="cuda")
        self.np = self.cpu.numpy()


class BlockTable:
    """The blocks of rows, and the slots of tokens."""

    def __init__(self, rows: int, blocks: int, tokens: int) -> None:
        self.block_table = Buffer(rows, blocks, dtype=torch.int32)
        self.slot_mapping = Buffer(tokens, dtype=torch.int64)

    def commit_block_table(self, rows: int) -> None:
        """Copy rows to the device."""
        self.block_table.gpu[:rows].copy_(self.block_table.cpu[:rows])


class BlockTables(list[BlockTable]):
    """One for each group of layers."""

    def commit_block_table(self, rows: int) -> None:
        """Copy rows to the device."""
        for each in self:
            each.commit_block_table(rows)


class InputBatch:
    """The rows of requests, made anew in each step."""

    def __init__(self, requests: int, length: int, block_size: int, tokens: int) -> None:
        self.token_ids_cpu_tensor = torch.zeros(requests, length, dtype=torch.int32)
        self.token_ids_cpu = self.token_ids_cpu_tensor.numpy()
        self.is_token_ids = torch.zeros(requests, length, dtype=torch.bool).numpy()
        self.num_tokens_no_spec = torch.zeros(requests, dtype=torch.int32).numpy()
        self.block_table = BlockTables([BlockTable(requests, -(-length // block_size), tokens)])
        self.req_ids: list[str] = []

    @property
    def req_id_to_index(self) -> dict[str, int]:
        """The rows of requests."""
        return {name: row for row, name in enumerate(self.req_ids)}

    def fill(self, states: list[CachedRequestState], drafts: dict[str, list[int]]) -> None:
        """Give each request a row."""
        self.req_ids = [state.req_id for state in states]
        for row, state in enumerate(states):
            ids = [*state.prompt_token_ids, *state.output_token_ids]
            self.num_tokens_no_spec[row] = len(ids)
            ids += drafts.get(state.req_id, [])
            self.token_ids_cpu[row, : len(ids)] = ids
            blocks = state.block_ids[0]
            self.block_table[0].block_table.np[row, : len(blocks)] = blocks
