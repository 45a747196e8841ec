"""When the command began: Python has imported for seconds by the time that it gets to say anything."""

import os
import time
from pathlib import Path


def command_began() -> float:
    """The start of this process, by the monotonic clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # The 22nd field, of which two stand before the name's end: in ticks since the machine started (proc_pid_stat(5)).
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
