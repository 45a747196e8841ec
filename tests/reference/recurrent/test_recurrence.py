"""The recurrences in fp64, and the errors that they allow."""

from dataclasses import replace

import pytest
import torch

from attnfuzz.reference.recurrent.noise import StateNoise
from attnfuzz.reference.recurrent.recurrence import UNIFORM, StateTerms, Taps, convolve, recur

DOUBLE = torch.float64


def drawn(
    tokens: int, *, delta: bool, heads: int = 2, keys: int = 4, values: int = 3, decay: float = 0.3
) -> StateTerms:
    source = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=DOUBLE)

    key = normal(tokens, heads, keys)
    return StateTerms(
        query=normal(tokens, heads, keys),
        key=key / key.norm(dim=-1, keepdim=True),
        value=normal(tokens, heads, values),
        log_decay=-decay * normal(tokens, heads, 1).abs(),
        beta=normal(tokens, heads).sigmoid() if delta else None,
    )


def part_of(terms: StateTerms, tokens: slice) -> StateTerms:
    beta = None if terms.beta is None else terms.beta[tokens]
    return StateTerms(terms.query[tokens], terms.key[tokens], terms.value[tokens], terms.log_decay[tokens], beta)


@pytest.mark.parametrize("delta", [False, True])
def test_states_are_products_of_matrices(delta: bool) -> None:
    terms, start = drawn(5, delta=delta), torch.ones(2, 4, 3, dtype=DOUBLE)
    answer = recur(terms, start, StateNoise(), all_states=True)
    assert len(answer.states) == 5
    for head in range(2):
        state = start[head]
        for t in range(5):
            k, v, decay = terms.key[t, head], terms.value[t, head], terms.log_decay[t, head].exp()
            beta = 1.0 if terms.beta is None else float(terms.beta[t, head])
            forget = torch.eye(4, dtype=DOUBLE) - (beta * torch.outer(k, k) if delta else 0)
            state = forget @ (decay * state) + beta * torch.outer(k, v)
            torch.testing.assert_close(answer.states[t][head], state)
            torch.testing.assert_close(answer.out[t, head], state.T @ terms.query[t, head])


def test_a_sequence_in_two_parts_has_the_same_answer() -> None:
    terms = drawn(130, delta=True)
    start = torch.zeros(2, 4, 3, dtype=DOUBLE)
    whole = recur(terms, start, StateNoise())
    halves = [part_of(terms, part) for part in (slice(0, 64), slice(64, None))]
    first = recur(halves[0], start, StateNoise())
    second = recur(halves[1], first.states[-1], StateNoise())
    torch.testing.assert_close(torch.cat((first.out, second.out)), whole.out)
    torch.testing.assert_close(second.states[-1], whole.states[-1])


@pytest.mark.parametrize("delta", [False, True])
def test_errors_of_rounded_factors_are_within_their_bounds(delta: bool) -> None:
    terms, start = drawn(70, delta=delta, keys=16, values=8, decay=0.01), torch.zeros(2, 16, 8, dtype=DOUBLE)
    right = recur(terms, start, StateNoise(operands=2.0**-8))
    rounded = StateTerms(
        terms.query, terms.key.bfloat16().double(), terms.value.bfloat16().double(), terms.log_decay, terms.beta
    )
    off = (recur(rounded, start, StateNoise()).out - right.out).abs() / right.out_error.sqrt()
    assert 0.05 < float(off.square().mean().sqrt()) < 1
    assert float(off.max()) < 4


def test_the_bound_of_an_element_has_the_offset_of_a_decay() -> None:
    # FlashInfer 0.7.4's prefill on Hopper takes log2(decay + 1e-10): a decay of e^-30 was 1e-10 there.
    terms, start = drawn(1, delta=True), torch.randn(2, 4, 3, dtype=DOUBLE)
    terms = replace(terms, key=torch.zeros_like(terms.key), log_decay=torch.full_like(terms.log_decay, -30.0))
    raised = replace(terms, log_decay=(terms.log_decay.exp() + 1e-10).log())
    right = recur(terms, start, StateNoise(decay_offset=1e-10))
    off = (recur(raised, start, StateNoise()).states[-1] - right.states[-1]).square()
    torch.testing.assert_close(off, UNIFORM * right.state_errors[-1])


@pytest.mark.slow
def test_bounds_of_a_long_memory_do_not_grow_without_limit() -> None:
    terms = drawn(4000, delta=True, heads=1, decay=1e-4)
    answer = recur(terms, torch.zeros(1, 4, 3, dtype=DOUBLE), StateNoise(operands=2.0**-8))
    assert float(answer.state_errors[-1].sqrt().max()) < 0.1
    assert torch.isfinite(answer.out).all()


def test_a_request_without_tokens_keeps_its_state() -> None:
    start = torch.randn(2, 4, 3, dtype=DOUBLE)
    none = part_of(drawn(1, delta=True), slice(0, 0))
    answer = recur(none, start, StateNoise())
    assert answer.out.shape == (0, 2, 3)
    assert torch.equal(answer.states[-1], start)


@pytest.mark.parametrize("activated", [False, True])
def test_a_convolution_is_torchs(activated: bool) -> None:
    inputs, weight, bias = torch.randn(6, 13), torch.randn(6, 4), torch.randn(6)
    out, error = convolve(Taps(weight, bias, activated), inputs, StateNoise())
    expected = torch.nn.functional.conv1d(inputs.double()[None], weight.double()[:, None], bias.double(), groups=6)[0]
    torch.testing.assert_close(out, torch.nn.functional.silu(expected) if activated else expected)
    assert error.shape == out.shape == (6, 10)
