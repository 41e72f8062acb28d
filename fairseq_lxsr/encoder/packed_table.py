"""Tables of 8-bit or 4-bit weights whose rows are converted to float32 when needed."""

from typing import Any

import numpy as np

from fairseq_lxsr.files.locks import ThreadLock

# Number of rows to unpack together, so that they fit into one core's cache.
ROWS_AT_ONCE = 1024
# Initial capacity of a new table, in rows.
FIRST_ROWS = 1024


class PackedTable:
    """Table of 8-bit or 4-bit weights whose rows are unpacked to float32 on first use.

        table = PackedTable(codes, scales)
        rows, places = table.unpack(ids)
        vectors = rows[places]

    Unpacked rows stay in memory, so a long run is as fast as with a float32 table, whereas a short
    run needs little memory. Several threads may use the same table.

    Args:
        codes: int8 [V, D], or two 4-bit codes per byte, uint8 [V, D/2] (see `to_int4`).
        scales: float32 [V], one factor per row of codes.
        divisor: divisor of all unpacked rows. Dividing the scales instead would round the rows
            differently.

    Attributes:
        scales: float32 [V], the factors divided by the divisor.
    """

    # Data type of the rows.
    dtype = np.dtype(np.float32)

    def __init__(self, codes: np.ndarray, scales: np.ndarray, divisor: float = 1):
        self.codes = codes
        self.scales = scales / np.float32(divisor)
        self._factors = scales
        self._divisor = np.float32(divisor)
        codes_per_item = 2 if codes.dtype == np.uint8 else 1
        self.shape = (len(codes), codes_per_item * codes.shape[1])
        self._lock = ThreadLock(self._forget)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the unpacked rows."""
        return {"codes": self.codes, "scales": self._factors, "divisor": self._divisor}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _forget(self) -> None:
        """Discard the unpacked rows."""
        # Unpacked rows, in the order of their first use, and their number.
        self._rows = np.empty((min(FIRST_ROWS, len(self.codes)), self.shape[1]), np.float32)
        self._row_count = 0
        # Position of each table row among the unpacked rows, or -1 if it is not unpacked.
        self._places = np.full(len(self.codes), -1, dtype=np.int64)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.shape[0] * self.shape[1]

    def unpack(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all unpacked rows, and the positions of the requested rows among them.

        Args:
            ids: row indices, int64 [N].

        Returns:
            Rows float32 [R, D], and the position of each id among them, int64 [N].
        """
        with self._lock:
            missing = ids[self._places[ids] < 0]
            if len(missing):
                self._add(_without_repeats(missing, len(self.codes)))
            # Rows that are added later change neither these rows nor their positions.
            return self._rows, self._places[ids]

    def _add(self, ids: np.ndarray) -> None:
        """Unpack rows that have not been unpacked yet. The ids must be distinct."""
        count = self._row_count + len(ids)
        rows = self._rows
        if count > len(rows):
            capacity = min(max(count, 2 * len(rows)), len(self.codes))
            rows = np.empty((capacity, self.shape[1]), np.float32)
            rows[: self._row_count] = self._rows[: self._row_count]
        for start in range(0, len(ids), ROWS_AT_ONCE):
            part = ids[start : start + ROWS_AT_ONCE]
            first = self._row_count + start
            unpacked = rows[first : first + len(part)]
            to_float32(self.codes[part], self._factors[part], unpacked)
            if self._divisor != 1:
                unpacked /= self._divisor
        self._rows = rows
        self._places[ids] = np.arange(self._row_count, count)
        self._row_count = count

    def all_rows(self) -> np.ndarray:
        """Return the whole table in float32 [V, D]."""
        with self._lock:
            if self._row_count < len(self.codes) or (np.diff(self._places) != 1).any():
                self._forget()
                self._add(np.arange(len(self.codes)))
            return self._rows

    def isfinite(self) -> np.ndarray:
        """Return a mask of the finite weights: one value per row or, if needed, one per weight.

        There is one per row if the scales are so small that all weights must be finite.
        """
        largest_code = -np.iinfo(np.int8).min
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = np.isfinite(self._factors * np.float32(largest_code))
            return is_finite if is_finite.all() else np.isfinite(self.all_rows())


def to_float32(codes: np.ndarray, scales: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Multiply the codes of N rows by their scales.

    Args:
        codes: int8 [N, D], or two 4-bit codes per byte, uint8 [N, D/2].
        scales: float32 [N].
        out: array to write the result to, float32 [N, D].

    Returns:
        Rows in float32 [N, D].
    """
    return np.multiply(to_bytes(codes), scales[:, None], out=out, dtype=np.float32)


def to_bytes(codes: np.ndarray) -> np.ndarray:
    """Return the codes of N rows as int8 [N, D]. The arguments are those of `to_float32`."""
    if codes.dtype == np.uint8:
        return np.hstack([codes & 15, codes >> 4]).view(np.int8) - np.int8(8)
    return codes


def _without_repeats(ids: np.ndarray, limit: int) -> np.ndarray:
    """Deduplicate ids below a limit. For many ids, `np.unique` would be slower."""
    order = np.arange(len(ids))
    last_places = np.empty(limit, dtype=np.int64)
    last_places[ids] = order
    return ids[last_places[ids] == order]
