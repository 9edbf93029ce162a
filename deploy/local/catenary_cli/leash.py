"""Runs a command that cannot outlive whoever started it: `leash.py <parent's pid> <signal> <path> <arguments>…`.

The kernel sends the signal when the parent ends, however it ends. The command takes this process's place, so the pid
that the parent knows is the command's. Standard library only: it runs before anything of ours is imported.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Arm the leash, then become the command."""
    parent, number, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the launcher is gone")
    os.execv(command[0], command)  # noqa: S606  # argv from our own launcher, no shell


if __name__ == "__main__":
    main()
