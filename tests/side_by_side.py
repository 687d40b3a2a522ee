"""Runs two commands at once: one as usual, one behind it on the processor time that it leaves.

`python -m tests.side_by_side FIRST BEHIND`, as `make test` does with two sets of tests. What the one behind has to say
is shown when both have ended.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

NICEST = 19


def run(first: Sequence[str], behind: Sequence[str], shown: IO[bytes]) -> int:
    """Both to their ends; 0 or the exit code of one that failed. Ctrl-C and SystemExit end both, the first in order."""
    with tempfile.TemporaryFile() as said:
        apart = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT, "start_new_session": True}
        with subprocess.Popen(first) as front, subprocess.Popen(behind, **apart) as second:
            give_way(second.pid)
            try:
                codes = front.wait(), second.wait()
            except (KeyboardInterrupt, SystemExit) as ended:
                # It may have a fleet to take down; at Ctrl-C the terminal has told it already.
                if isinstance(ended, SystemExit):
                    front.send_signal(signal.SIGINT)
                os.killpg(second.pid, signal.SIGTERM)
                codes = front.wait(), second.wait()
        said.seek(0)
        shutil.copyfileobj(said, shown)
        shown.flush()
    return codes[0] or codes[1]


def give_way(pid: int) -> None:
    """Put a process and what it will start behind all others, also where Linux shares out time by session."""
    os.setpriority(os.PRIO_PROCESS, pid, NICEST)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICEST))


def stop(number: int, frame: FrameType | None) -> None:
    """A signal's handler."""
    sys.exit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, stop)
    sys.exit(run(shlex.split(sys.argv[1]), shlex.split(sys.argv[2]), sys.stdout.buffer))
