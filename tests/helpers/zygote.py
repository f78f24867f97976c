"""A process that has imported everything and forks a `fedveca` program for each line it is told: real, but quick."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def serve() -> None:
    import torch

    from fedveca.cli import main
    from fedveca.tasks.datasets.dataset import load

    torch.set_num_threads(1)  # threads do not survive a fork
    load("digits")
    for line in sys.stdin:
        told = json.loads(line)
        if isinstance(told, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(told, 0)[1])
        elif answer := os.fork():
            pass
        else:
            said = os.open(told["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.argv = ["fedveca", *told["argv"]]
            torch.set_num_threads(2)
            code = 99
            try:
                code = main()
            finally:
                os._exit(code)
        print(answer, flush=True)


class Zygote:
    def __init__(self, process: subprocess.Popen[str], said: Path) -> None:
        self.process, self.said = process, said

    def start(self, *argv: object) -> int:
        """The process id of a `fedveca` with these arguments."""
        return self._ask({"argv": list(map(str, argv)), "said": str(self.said)})

    def wait(self, pid: int, seconds: float = 240) -> int:
        """Its exit code, or less the signal that ended it."""
        return self._ask(pid, seconds)

    def run(self, *argv: object) -> tuple[int, str]:
        code = self.wait(self.start(*argv))
        return code, self.said.read_text()

    def _ask(self, what: object, seconds: float = 240) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], seconds)[0], f"no answer to {what} in {seconds} s"
        return int(self.process.stdout.readline())


def is_over(pid: int) -> bool:
    """Whether a program that was started has ended; its exit code still waits to be asked for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@contextlib.contextmanager
def zygote(folder: Path) -> Iterator[Zygote]:
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Zygote(process, folder / "said")
        finally:
            process.kill()


if __name__ == "__main__":
    serve()
