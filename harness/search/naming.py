"""Names of findings."""

import hashlib
from collections.abc import Collection

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint, fine
from attnfuzz.reference.any_case import AnyCase


def finding_name(case: AnyCase, observation: Observation, *, apart: Collection[str] | None = None) -> str:
    """Return the name of a finding's folder, shared by all findings with the same fine fingerprint.

    If other findings have its fingerprint, it gets a separate name, made of the features `apart` that it needs and its
    place.
    """
    name = f"{as_file_name(case.backend)}-{observation.kind}-{fine(case, observation)}"
    if apart is None:
        return name
    parts = (Fingerprint.of(case.backend, observation).anywhere.place, *apart)
    return f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:4]}"
