"""Per-sample estimators of β, G and |x|², in memory or in a file on disk."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.memory import available_memory

Array = NDArray[Any]
Indices = NDArray[np.intp]

logger = logging.getLogger("somf")


class Averages:
    """What is remembered of every sample: n·k numbers, and n·k² with Gram matrices.

    beta, energy     averages of Dᵀ M x and xᵀ M x over the visits of a sample
    G                average of Dᵀ M D over them, estimator (b) only
    codes            the last code: where the next search starts
    visits           c, the number of visits

    Beyond half of the memory that is free, or when `folder` is given, the arrays live
    in files of a temporary folder that goes with the object.
    """

    def __init__(
        self,
        n_samples: int,
        n_components: int,
        dtype: Any,
        *,
        with_gram: bool,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.with_gram = with_gram
        self.folder = folder
        self.dtype = np.dtype(dtype)
        self.n_components = n_components
        self._files: str | None = None
        self.n_samples = 0
        self.arrays: dict[str, Array] = {}
        self.reserve(n_samples)

    def _layout(self, n: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        k = self.n_components
        layout: dict[str, tuple[tuple[int, ...], Any]] = {
            "beta": ((n, k), self.dtype),
            "energy": ((n,), np.dtype(np.float64)),
            "codes": ((n, k), self.dtype),
            "visits": ((n,), np.dtype(np.int64)),
        }
        if self.with_gram:
            layout["G"] = ((n, k, k), self.dtype)
        return layout

    @property
    def nbytes(self) -> int:
        """Size of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def on_disk(self) -> bool:
        """Whether the arrays are memory-mapped files."""
        return self._files is not None

    def reserve(self, n_samples: int) -> None:
        """Make room for `n_samples` samples; known ones are kept."""
        if self.arrays and n_samples <= self.n_samples:
            return
        if self.n_samples:  # grows by half, so that a stream is not copied every time
            n_samples = max(n_samples, 3 * self.n_samples // 2)
        layout = self._layout(n_samples)
        size = sum(int(np.prod(s)) * d.itemsize for s, d in layout.values())
        if self._files is None and (
            self.folder is not None or size > available_memory() // 2
        ):
            self._files = tempfile.mkdtemp(prefix="somf-", dir=self.folder)
            weakref.finalize(self, shutil.rmtree, self._files, ignore_errors=True)
            logger.log(
                logging.INFO if self.folder is not None else logging.WARNING,
                "Per-sample estimators of %d samples take %.1f GB: they are kept in "
                "the folder %s on disk.",
                n_samples,
                size / 1e9,
                self._files,
            )
        old, self.arrays = self.arrays, {}
        for name, (shape, dtype) in layout.items():
            self.arrays[name] = self._room(name, shape, dtype)
            if name in old:
                self.arrays[name][: self.n_samples] = old[name]
                if isinstance(old[name], np.memmap):
                    Path(old[name].filename).unlink()  # type: ignore[attr-defined]
        self.n_samples = n_samples

    def _room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        if self._files is None or shape[0] == 0:  # old NumPy maps no empty files
            return np.zeros(shape, dtype)
        path = Path(self._files) / f"{name}.{shape[0]}"
        return np.memmap(path, dtype, mode="w+", shape=shape)  # sparse: reads as zeros

    def update(
        self,
        index: Indices,
        weight: NDArray[np.float64],
        beta: Array,
        energy: Array,
        G: Array | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Mix new estimates into those of the samples `index`; return the averages.

        `weight` is γ of each sample; a weight of 1 forgets the past.
        """
        self.reserve(int(index.max()) + 1)
        gamma = weight.astype(self.dtype)[:, None]
        arrays = self.arrays
        mean_beta = arrays["beta"][index] * (1 - gamma) + gamma * beta
        mean_energy = arrays["energy"][index] * (1 - weight) + weight * energy
        arrays["beta"][index] = mean_beta
        arrays["energy"][index] = mean_energy
        mean_G = None
        if self.with_gram:
            assert G is not None
            mean_G = arrays["G"][index]
            mean_G *= 1 - gamma[:, :, None]
            mean_G += gamma[:, :, None] * G
            arrays["G"][index] = mean_G
        return mean_beta, mean_energy, mean_G

    def visit(self, index: Indices) -> NDArray[np.int64]:
        """Count a visit of each sample; return how many it has had, with this one."""
        self.reserve(int(index.max()) + 1)
        self.arrays["visits"][index] += 1
        return np.asarray(self.arrays["visits"][index])

    def codes(self, index: Indices) -> Array:
        """Return the last codes of the samples, as a copy."""
        return np.array(self.arrays["codes"][index])

    def keep_codes(self, index: Indices, codes: Array) -> None:
        """Remember codes as starting points."""
        self.arrays["codes"][index] = codes

    @classmethod
    def restore(cls, arrays: dict[str, Array], folder: str | None) -> Averages:
        """Rebuild from arrays that were saved, perhaps on another machine."""
        n_samples, n_components = arrays["beta"].shape
        if folder is not None and not os.path.isdir(folder):
            logger.warning("The folder %s does not exist: using the default.", folder)
            folder = None
        averages = cls(
            n_samples,
            n_components,
            arrays["beta"].dtype,
            with_gram="G" in arrays,
            folder=folder,
        )
        for name, array in arrays.items():
            averages.arrays[name][:] = array
        return averages

    def forget(self) -> None:
        """Let the next visit of every sample count as its first."""
        self.arrays["visits"][:] = 0
        self.arrays["codes"][:] = 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the numbers; a copy gets a place of its own."""
        state = self.__dict__.copy()
        state["_files"] = None
        state["arrays"] = {name: np.array(a) for name, a in self.arrays.items()}
        return state
