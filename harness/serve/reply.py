"""The answer of a server to one request."""

from dataclasses import dataclass

Token = int | str
"""A token: its id, or its text where a server gives no ids."""


class BadReply(ValueError):
    """An answer lacks something that the API promises; the message names it."""


@dataclass(frozen=True)
class Completion:
    """The tokens that were generated, each with its log-probability."""

    tokens: tuple[Token, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Reply:
    """A complete answer: `n` completions, and the server's counts of tokens, None where it gives none.

    `scores` are the log-probabilities of the prompt's tokens but the first. `name` is the id that the server gave back,
    `prompt` the prompt that it answered to.
    """

    completions: tuple[Completion, ...]
    scores: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    generated: int | None = None
    name: str | None = None
    prompt: tuple[Token, ...] | None = None


@dataclass(frozen=True)
class Sent:
    """A request that was sent, and how it ended: with a `reply`, `closed` by the client, or with an `error`.

    `status` is that of a refusal, 0 where the connection broke, and -1 where no answer came in time.
    """

    reply: Reply | None = None
    closed: bool = False
    error: str = ""
    status: int = 200
