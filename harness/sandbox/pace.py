"""Time limits of cases, from the time that the cases of their backend take."""

import os
import re
from collections import defaultdict, deque
from collections.abc import Mapping
from statistics import median

from attnfuzz.harness.workers.patience import Patience
from attnfuzz.reference.device import Device

LEAST_SECONDS = {Device.CPU: 5.0, Device.CUDA: 10.0}
"""The shortest limit. Small cases take milliseconds; on a GPU, the driver may keep a process waiting for another."""

AT_FIRST = 2.0
"""Factor of the limit for a backend's first cases, which may load and compile."""

TIMES_THE_MEDIAN = 50.0

_CASES_TO_KNOW = 10
_CASES_TO_REMEMBER = 200

TOTAL = 20.0
"""Total limit of a case, as a multiple of the longest silence: hundreds of launches on a shared GPU are slow."""

_SLOW_LIBRARIES = re.compile(r"asan|tsan|msan|ubsan|malloc_debug|valgrind|vgpreload|sanitizer|injection", re.IGNORECASE)
_LOADED_FIRST = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")


class CasePace:
    """The seconds that cases took, by backend. `most` is the longest silence allowed, before a backend's `patience`."""

    def __init__(self, most: float, environment: Mapping[str, str] = os.environ) -> None:
        self._most = most
        self._took: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_CASES_TO_REMEMBER))
        self._slowed_down = any(_SLOW_LIBRARIES.search(environment.get(name, "")) for name in _LOADED_FIRST)

    def add(self, backend: str, seconds: float) -> None:
        """Note how long a case took."""
        self._took[backend].append(seconds)

    def patience(self, backend: str, device: Device, factor: float, *, more: float = 0.0) -> Patience:
        """Return the limits of the next case, times a `factor`, plus `more` seconds.

        Under a sanitizer, nothing is shorter than the longest silence.
        """
        most, took = self._most * factor, self._took[backend]
        if self._slowed_down:
            least = most
        elif len(took) < _CASES_TO_KNOW:
            least = AT_FIRST * LEAST_SECONDS[device] * factor
        else:
            least = max(LEAST_SECONDS[device] * factor, TIMES_THE_MEDIAN * median(took))
        return Patience(min(least, most) + more, most + more, TOTAL * (most + more))
