"""Where calls into TensorRT-LLM leave our code, and its exceptions become ours."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from catenary_protocols.errors import CatenaryError, EngineError, ErrorInfo

T = TypeVar("T")


class TurnError(Exception):
    """One turn failed; the engine lives."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


@contextmanager
def foreign(doing: str, *, failed: tuple[type[Exception], ...] = (), refused: bool = False) -> Iterator[None]:
    """Raises `TurnError` for what concerns one turn, `EngineError` for all else.

    Args:
        doing: completes "TensorRT-LLM broke while it …".
        failed: what it raises for a single turn.
        refused: whether a `ValueError` or `TypeError` means that it does not like the turn.
    """
    try:
        yield
    except CatenaryError:
        raise
    except failed as error:
        raise TurnError(ErrorInfo(code="engine_failed", message=f"TensorRT-LLM: {error}")) from error
    except Exception as error:  # the one boundary around foreign code
        if refused and isinstance(error, ValueError | TypeError):
            raise TurnError(ErrorInfo(code="invalid_value", message=f"TensorRT-LLM: {error}")) from error
        raise EngineError(f"TensorRT-LLM broke while it {doing}: {type(error).__name__}: {error}") from error


def in_thread(doing: str, work: Callable[[], T]) -> "Future[T]":
    """Run `work` in a thread that cannot keep the process alive, as a pool's threads would if it never returns."""
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()  # from now on nobody can cancel it
        try:
            with foreign(doing):
                result = work()
        except CatenaryError as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=f"trtllm: {doing}", daemon=True).start()
    return future
