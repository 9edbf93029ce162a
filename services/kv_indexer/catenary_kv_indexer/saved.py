"""The index over a restart: written when the service stops, read once when it starts again under the same name.

What was read is a guess until the workers' beats agree with it, so an old file costs a question and no wrong answer.
"""

from pathlib import Path

import structlog
from catenary_protocols.bus.codec import Decoder, UndecodableError, encode

from catenary_kv_indexer.core.dump import IndexDump

log = structlog.get_logger()
_decode = Decoder(IndexDump)


class SavedIndex:
    """One file. An instance whose name was made up would not find it again, and has none."""

    def __init__(self, data_dir: str, instance: str) -> None:
        self._path = Path(data_dir, "kv-index", f"{instance}.msgpack") if instance else None

    def write(self, dump: IndexDump) -> None:
        """Replace the file."""
        if self._path is None:
            return
        part = self._path.with_suffix(".part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(encode(dump))
            part.replace(self._path)
        except OSError as error:
            log.warning("index.not_saved", path=str(self._path), why=str(error))

    def take(self) -> IndexDump | None:
        """What the file holds, once; None where there is none that can be read."""
        if self._path is None:
            return None
        try:
            data = self._path.read_bytes()
            self._path.unlink()
            return _decode(data)
        except FileNotFoundError:
            return None
        except (OSError, UndecodableError) as error:
            log.warning("index.not_read", path=str(self._path), why=str(error))
            return None
