"""Features of paid images in a frozen public network: computed once, and kept in a file of a run.

The file holds nothing that is paid for. Where it cannot be used, features are computed again.
"""

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOGGER = logging.getLogger("dfme")

TABLE = "CREATE TABLE features (image BLOB PRIMARY KEY, row BLOB, digest BLOB)"
MOST_BYTES = 1 << 30
"""Of a file, about: 200,000 images of 1,280 features. What comes later is not kept."""

WAIT = 10.0  # seconds for another process that writes

Row: TypeAlias = NDArray[np.float32]


class FeatureCache:
    """Features (B, d) by image, in an SQLite file that several runs may share.

    ``key``: what decides the features beside the image: digest of the weights, and the form in
    which the network sees an image. A row counts only with its digest, of key, image and features.
    Without a ``file`` nothing is kept.
    """

    def __init__(self, file: Path | None, key: str, width: int) -> None:
        self._file = file
        self._key = hashlib.sha256(key.encode()).digest()
        self._width = width

    def __call__(self, images_BCHW: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """The features of these images; those that are not kept by ``compute``."""
        if self._file is None:
            return compute(images_BCHW)
        codes = [self._code(image) for image in images_BCHW.cpu().contiguous().numpy()]
        rows = self._read(codes)
        new = {code: place for place, code in enumerate(codes) if code not in rows}
        if new:
            places = torch.tensor([*new.values()], device=images_BCHW.device)
            computed = compute(images_BCHW[places]).float().cpu().numpy()
            fresh = dict(zip(new, computed, strict=True))
            self._write(fresh)
            rows |= fresh
        stacked = torch.from_numpy(np.stack([rows[code] for code in codes]))
        return stacked.to(images_BCHW.device)

    def _code(self, image: Row) -> bytes:
        return hashlib.blake2b(image.tobytes(), digest_size=20, key=self._key).digest()

    def _digest(self, code: bytes, row: bytes) -> bytes:
        return hashlib.sha256(self._key + code + row).digest()

    def _read(self, codes: Sequence[bytes]) -> dict[bytes, Row]:
        """The rows that are there, and whole."""

        def read(connection: sqlite3.Connection) -> dict[bytes, Row]:
            rows = {}
            for code in codes:
                select = "SELECT row, digest FROM features WHERE image = ?"
                for row, digest in connection.execute(select, (code,)):
                    if self._is_whole(code, row, digest):
                        rows[code] = np.frombuffer(row, np.float32)
            return rows

        return self._with_file(read) or {}

    def _is_whole(self, code: bytes, row: object, digest: object) -> bool:
        if not isinstance(row, bytes) or len(row) != 4 * self._width:
            return False
        return digest == self._digest(code, row)

    def _write(self, rows: Mapping[bytes, Row]) -> None:
        contents = {code: row.astype("<f4").tobytes() for code, row in rows.items()}
        records = [(code, row, self._digest(code, row)) for code, row in contents.items()]

        def write(connection: sqlite3.Connection) -> None:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (page,) = connection.execute("PRAGMA page_size").fetchone()
            if pages * page < MOST_BYTES:
                connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", records)

        self._with_file(write)

    def _with_file(
        self, act: Callable[[sqlite3.Connection], dict[bytes, Row] | None]
    ) -> dict[bytes, Row] | None:
        """The result of ``act`` in one transaction; None, and no file any more, where it fails."""
        if self._file is None:
            return None
        beside = [Path(f"{self._file}{ending}") for ending in ("", "-journal", "-wal", "-shm")]
        try:
            if any(path.is_symlink() for path in (self._file.parent, *beside)):
                raise OSError("it is a link, or lies beside one")
            with closing(sqlite3.connect(self._file, timeout=WAIT)) as connection, connection:
                _require_table(connection)
                return act(connection)
        except (sqlite3.Error, OSError) as error:
            LOGGER.warning("%s: features are not kept: %s", self._file, error)
            self._file = None
            return None


def _require_table(connection: sqlite3.Connection) -> None:
    """Make the table in an empty file. OSError for a file with anything else in it."""
    entries = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if not entries:
        connection.execute(TABLE)
    elif entries != [(TABLE,)]:
        raise OSError("it is no file of features; remove it")
