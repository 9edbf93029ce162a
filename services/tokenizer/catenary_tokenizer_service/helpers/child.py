"""A helper process: jobs in on standard input, answers out, until the input ends or a job's time is up.

The kernel keeps the time: its alarm ends the process, whatever that is busy with and whether or not anybody is left to
wait for it.
"""

import os
import pickle
import resource
import signal
import sys
from typing import IO

from catenary_tokenizer_service.helpers.wire import ERRORS, write_answer, write_error


def main(memory: int) -> None:
    """Work. `memory`: bytes of address space, 0 for as much as there is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for our parent, which drains first
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is no answer
    while _one(sys.stdin.buffer, answers):
        pass


def _one(jobs: IO[bytes], answers: IO[bytes]) -> bool:
    try:
        job, within = pickle.load(jobs)  # noqa: S301  # from our parent alone
    except EOFError:
        return False
    signal.setitimer(signal.ITIMER_REAL, within)
    try:
        answer = job()
    except ERRORS as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_error(answers, error)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_answer(answers, answer)
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]))
