"""The kinds of backends of SGLang, by version, and torch's functions below one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from packaging.version import Version
from small_cases import step

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.releases.stand_ins import answered_by
from attnfuzz.kernels.sglang.kinds import KINDS, capability_of
from attnfuzz.kernels.sglang.torch_functions import attend, attend_in_blocks
from attnfuzz.reference.case import Case, Mask, Mode
from attnfuzz.reference.geometry import Geometry

GEOMETRY = Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4)


@pytest.mark.parametrize("name", KINDS)
def test_the_modes_of_a_kind_are_those_with_an_order_of_events(name: str) -> None:
    oldest, newest = (capability_of(name, Version(each)) for each in ("0.5.9", "0.5.23"))
    assert Mode.DRAFT_DECODE not in oldest.modes
    assert (Mode.DRAFT_DECODE in capability_of(name, Version("0.5.13")).modes) is bool(KINDS[name].drafts)
    assert Mode.DRAFT_EXTEND not in newest.modes
    assert (Mode.DRAFT_DECODE in newest.modes) is bool(KINDS[name].drafts)
    assert not set(newest.graph_modes) - set(newest.modes)


def test_attention_of_torch_is_launched() -> None:
    launched: list[str] = []

    def launch(op: Any, arguments: dict[str, Any]) -> None:
        launched.append(op.name)
        op.function(**arguments)

    query, key = torch.rand(1, 2, 3, 8), torch.rand(1, 2, 5, 8)
    lower: Any = SimpleNamespace(launch=launch)
    with answered_by(lower):
        out = attend(query, key, key, scale=0.5, is_causal=False)
    assert launched == ["scaled_dot_product_attention"]
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(query, key, key, scale=0.5))


def test_a_mask_of_blocks_hides_the_keys_of_blocks_that_it_leaves_out() -> None:
    def launch(op: Any, arguments: dict[str, Any]) -> None:
        op.function(**arguments)

    blocks = SimpleNamespace(
        seq_lengths=(torch.tensor(3), 3),
        BLOCK_SIZE=(2, 2),
        kv_num_blocks=torch.tensor([[[1, 0]]]),
        kv_indices=torch.tensor([[[[0, 1], [1, 0]]]]),
        full_kv_num_blocks=torch.tensor([[[0, 1]]]),
        full_kv_indices=torch.tensor([[[[0, 1], [0, 1]]]]),
        mask_mod=lambda _b, _h, row, key: row >= key,
    )
    query, key = torch.rand(1, 1, 3, 8), torch.rand(1, 1, 3, 8)
    lower: Any = SimpleNamespace(launch=launch)
    with answered_by(lower):
        out = attend_in_blocks(query, key, key, block_mask=blocks)
        with pytest.raises(ValueError, match=r"created for \(3, 3\) queries and keys, not for \(2, 3\)"):
            attend_in_blocks(query[:, :, :2], key, key, block_mask=blocks)
    seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 0]]).bool()
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=seen))


@pytest.mark.parametrize("name", ["flashinfer_mla", "flashmla"])
def test_draft_extends_of_requests_that_all_lack_a_prompt_are_not_run(name: str) -> None:
    drafts = step(Mode.DRAFT_EXTEND_V2, (2, 2), (2, 5), rows=4, stride=2)
    case = Case(backend=name, geometry=GEOMETRY, steps=(drafts,))
    KINDS[name].check(case)
    with pytest.raises(Unsupported, match="has a prompt"):
        KINDS[name].check(replace(case, steps=(replace(drafts, requests=drafts.requests[:1]),)))


@pytest.mark.parametrize(("seed", "drafts"), [(0, "fa3"), (1, "fa3"), (2, "flashinfer"), (3, "flashinfer")])
def test_the_seed_chooses_which_of_two_backends_verifies(seed: int, drafts: str) -> None:
    kind = KINDS["fa3+flashinfer"]
    served = {mode: kind.serving(mode, seed).name for mode in Mode}
    assert served == {
        Mode.DECODE: "flashinfer",
        Mode.DRAFT_DECODE: "flashinfer",
        Mode.TARGET_VERIFY: drafts,
        Mode.DRAFT_EXTEND: drafts,
        Mode.DRAFT_EXTEND_V2: drafts,
        Mode.EXTEND: "fa3",
        Mode.CHUNKED_PREFILL: "fa3",
    }


def test_two_backends_of_a_server_get_the_cases_that_both_support() -> None:
    both = capability_of("flashinfer+trtllm_mha", Version("0.5.23"))
    assert (both.page_sizes, both.head_dims) == ((16, 32, 64), (64, 128, 256))
    assert both.windows
    assert not both.sinks
    assert both.masks == (Mask.CAUSAL,)
    assert Mode.DRAFT_EXTEND_V2 not in capability_of("flashinfer_mla+trtllm_mla", Version("0.5.23")).graph_modes
