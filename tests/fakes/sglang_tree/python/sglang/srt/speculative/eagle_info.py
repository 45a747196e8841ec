"""What a batch is speculated with."""

from dataclasses import dataclass

import torch


@dataclass
class EagleVerifyInput:
    """Drafts that the target model looks at."""

    draft_token_num: int
    spec_steps: int
    topk: int
    num_tokens_per_req: int = -1


@dataclass
class EagleDraftInput:
    """Tokens that the draft model learns of."""

    hidden_states: torch.Tensor
    accept_length: torch.Tensor
    accept_length_cpu: list[int] | None = None
    num_tokens_per_req: int = -1
