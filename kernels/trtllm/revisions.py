"""Revisions of the TRT-LLM sessions, before or after a reported fix: the fixed ones with one method reverted."""

from collections.abc import Mapping
from typing import Final, TypeVar

from attnfuzz.kernels.planning.lengths import longest
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.reference.case import Mode, Step


class MhaTrustsPaddedBatch(MhaSession):
    """SGLang PR #21649: the context kernel gets the batch size that padding has raised since planning."""

    def context_batch(self, step: Step, plan: BatchMetadata) -> int:
        """Return the padded batch, which exceeds the metadata's rows."""
        return step.padded_batch


class MhaDraftExtendOnDecode(MhaSession):
    """SGLang PR #24566: draft extend v2 on the decode kernel, which takes its batch from the padded queries."""

    def uses_decode_kernel(self, mode: Mode) -> bool:
        """Return whether a mode is routed to the decode kernel, which draft extend v2 is too."""
        return super().uses_decode_kernel(mode) or mode is Mode.DRAFT_EXTEND_V2


class MlaReplaysAcceptLengths(MlaSession):
    """SGLang PR #21987: a replay plans lengths for the longest accepted sequence, not for the captured stride."""

    def replay_stride(self, step: Step) -> int:
        """Return the longest accept length of the replayed batch."""
        if step.mode is not Mode.DRAFT_EXTEND:
            return super().replay_stride(step)
        return longest(request.q_len for request in step.requests)


class MlaMergesUnwrittenRows(MlaSession):
    """SGLang PR #22688: chunks are merged without fixing up the rows that the kernel left unwritten."""

    def needs_fixup(self, has_zero_kv: bool) -> bool:
        """Return False: never fix up."""
        return False


MHA_REVISIONS: Final[Mapping[str, type[MhaSession]]] = {
    "21649-before": MhaTrustsPaddedBatch,
    "24566": MhaDraftExtendOnDecode,
}
MLA_REVISIONS: Final[Mapping[str, type[MlaSession]]] = {
    "21987-before": MlaReplaysAcceptLengths,
    "22688-before": MlaMergesUnwrittenRows,
}

_Session = TypeVar("_Session", MhaSession, MlaSession)


def revised(session: type[_Session], revision: type[_Session]) -> type[_Session]:
    """Combine `session`, which drives other kernels, with the methods of `revision`."""
    return type(f"{session.__name__}{revision.__name__}", (revision, session), {})
