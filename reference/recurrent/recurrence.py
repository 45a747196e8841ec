"""The recurrences in fp64, token by token, and the mean squares of the errors of correct kernels.

The state S of a head is [key_dim, value_dim]. Per token t, with decay a = exp(g):

    S = a S;  u = beta (v - S' k) with the delta rule, else v;  S = S + k u';  o = S' q

Errors are propagated to first order, as a mean square for each element of S. Those of different elements count as
independent. With the delta rule, (I - beta k k') mixes the elements of a column, so that its mean squares m become
m (1 - 2 beta k^2) + beta^2 k^2 sum(k^2 m), whose sum does not grow as long as beta |k|^2 <= 2. New errors come from the
rounding of factors and sums. A rounding to nearest is bounded by its roundoff, of which `UNIFORM` is the mean square
over the bound.
"""

from dataclasses import dataclass

import torch

from attnfuzz.reference.recurrent.noise import StateNoise

CHUNK = 64
"""Tokens of a chunk in most chunked forms (FLA, vLLM, FlashInfer)."""

UNIFORM = 0.18
"""Mean square relative error over u^2 of rounding to nearest, for a log-uniform mantissa: 1 / (8 ln 2)."""


@dataclass(frozen=True)
class StateTerms:
    """The factors of the recurrence for the tokens of one request, in fp64 and with a head of each value head.

    query and key [T, H, K], value [T, H, V], log_decay [T, H, K or 1] <= 0, beta [T, H] with the delta rule, else
    None. `skip` [T, H, V] is added to the output, which is multiplied by silu(`gate`) [T, H, V]. If a kernel computes
    decays, they are `rate` [H, K or 1] times a softplus, which is `step` [T, H, 1] where it also multiplied the value.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor | None = None
    skip: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    rate: torch.Tensor | None = None
    step: torch.Tensor | None = None


@dataclass(frozen=True)
class StateAnswer:
    """The right outputs [T, ...] and the states after the last tokens, the last one at least.

    `out_error` and `state_errors` are the mean squares of the bounds on their errors, before the final rounding.
    """

    out: torch.Tensor
    out_error: torch.Tensor
    states: tuple[torch.Tensor, ...]
    state_errors: tuple[torch.Tensor, ...]


def recur(terms: StateTerms, state: torch.Tensor, noise: StateNoise, *, all_states: bool = False) -> StateAnswer:
    """Return the answer from an initial state [H, K, V]. With `all_states`, it has the state after each token."""
    query, key, value, beta = terms.query, terms.key, terms.value, terms.beta
    tokens = len(query)
    decay = terms.log_decay.exp().unsqueeze(-1)
    # The relative error of a decay, squared.
    decay_error = ((noise.gate * terms.log_decay).square() + noise.decay_floor**2 + noise.exponential**2).unsqueeze(-1)
    if terms.rate is not None:
        decay_error = decay_error + (noise.step * terms.rate).square().unsqueeze(-1)
    steps = torch.zeros_like(value[..., :1]) if terms.step is None else (noise.step / terms.step).square()
    state, error = state.to(torch.float64), torch.zeros(state.shape, dtype=torch.float64)
    if noise.prefix and tokens:
        decay_error = decay_error + (noise.prefix * _prefixes(terms.log_decay)).square().unsqueeze(-1)
    operands, sums = noise.operands**2, noise.accumulate**2 * key.shape[-1]
    kept = noise.state**2
    # An offset is the same in all elements: its mean square is not a part of its bound's, as that of a rounding is.
    offset = noise.decay_offset**2 / UNIFORM
    outs, errors, states, state_errors = [], [], [], []
    key_squared, query_squared = key.square(), query.square()
    for t in range(tokens):
        k, k2 = key[t].unsqueeze(-1), key_squared[t].unsqueeze(-1)
        error = error * decay[t].square() + offset * state.square()
        state = state * decay[t]
        squared = state.square()
        error = error + squared * decay_error[t]
        u = value[t]
        # Of u, the error of one factor and of its sums.
        fresh = u.square() * operands
        if beta is not None:
            rate = beta[t].unsqueeze(-1)
            held = (k * state).sum(1)
            powers = (k2 * squared).sum(1)
            fresh = rate.square() * (fresh + 2 * operands * powers + sums * powers)
            u = rate * (u - held)
            fresh = fresh + u.square() * (operands + noise.activation**2)
            rate = rate.unsqueeze(1)
            mixed = rate.square() * k2 * (k2 * error).sum(1, keepdim=True)
            error = (error * (1 - 2 * rate * k2) + mixed).clamp_(min=0)
        else:
            fresh = fresh + u.square() * (operands + noise.activation**2 + steps[t])
        state = state + k * u.unsqueeze(1)
        error = error + k2 * (fresh + operands * u.square()).unsqueeze(1) + kept * state.square()
        q, q2 = query[t].unsqueeze(-1), query_squared[t].unsqueeze(-1)
        outs.append((q * state).sum(1))
        errors.append((q2 * (error + (2 * operands + sums) * state.square())).sum(1))
        if all_states or t == tokens - 1:
            states.append(state)
            state_errors.append(error)
    if not tokens:
        return StateAnswer(value.clone(), value.clone(), (state,), (error,))
    out, out_error = _finished(torch.stack(outs), torch.stack(errors), terms, noise)
    return StateAnswer(out, out_error, tuple(states), tuple(state_errors))


def _prefixes(log_decay: torch.Tensor) -> torch.Tensor:
    """Return the sums of |log_decay| [T, H, K] from the beginning of each token's chunk."""
    return torch.cat([each.abs().cumsum(0) for each in log_decay.split(CHUNK)])


def _finished(
    out: torch.Tensor, error: torch.Tensor, terms: StateTerms, noise: StateNoise
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the part of the output that skips the state, and apply the output's gate."""
    if terms.skip is not None:
        error = error + (noise.operands**2 + noise.accumulate**2) * (terms.skip.square() + out.square())
        out = out + terms.skip
    if terms.gate is not None:
        factor = torch.nn.functional.silu(terms.gate)
        error = factor.square() * (error + (noise.middle**2 + noise.activation**2) * out.square())
        out = out * factor
    return out, error


@dataclass(frozen=True)
class Taps:
    """The factors of a causal convolution: weight [C, width], bias [C] or None, and whether silu is applied."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    activated: bool


def convolve(taps: Taps, inputs: torch.Tensor, noise: StateNoise) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs [C, T] of inputs [C, width - 1 + T] in fp64, and the mean squares of their errors' bounds."""
    width = taps.weight.shape[1]
    if inputs.shape[1] < width:
        none = torch.zeros(len(inputs), 0, dtype=torch.float64)
        return none, none
    products = inputs.to(torch.float64).unfold(1, width, 1) * taps.weight.to(torch.float64).unsqueeze(1)
    out, powers = products.sum(-1), products.square().sum(-1)
    if taps.bias is not None:
        bias = taps.bias.to(torch.float64).unsqueeze(-1)
        out, powers = out + bias, powers + bias.square()
    error = powers * (noise.operands**2 + noise.accumulate**2 * (width + 1))
    if taps.activated:
        sigmoid = out.sigmoid()
        slope = sigmoid * (1 + out * (1 - sigmoid))
        activated = out * sigmoid
        error = slope.square() * (error + noise.middle**2 * out.square()) + (noise.activation * activated).square()
        return activated, error
    return out, error
