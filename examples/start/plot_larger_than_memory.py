"""
Data on disk, and a run that stops half-way
===========================================

Learn from a file without loading it, see beforehand what it will take, and go on after
a failure as if nothing had happened.
"""

# %%
# A file
# ------
# It is written block by block, as a file would be that does not fit in memory. This one
# is small, 24 MB, so that the example is short.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import somf
from somf import SOMF

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "X.npy"

rng = np.random.default_rng(0)
n_samples, n_features, n_sources = 3000, 2000, 10
atoms = rng.standard_normal((n_sources, n_features), dtype=np.float32)
X = np.lib.format.open_memmap(path, "w+", np.float32, (n_samples, n_features))
for start in range(0, n_samples, 500):
    codes = rng.standard_normal((500, n_sources)) * (rng.random((500, n_sources)) < 0.3)
    noise = 0.5 * rng.standard_normal((500, n_features), dtype=np.float32)
    X[start : start + 500] = codes @ atoms + noise
X.flush()
del X

# %%
# What will it take?
# ------------------
# :func:`somf.plan` reads nothing but the header, unless it may try some iterations
# (``seconds``). A path is all that ``fit`` needs, too.
model = SOMF.dictionary_learning(
    n_sources, alpha=5.0, batch_size=100, n_epochs=4, tol=0, random_state=0
)
print(somf.plan(path, model, seconds=0))

# %%
# A run without incidents
# -----------------------
whole = model.fit(path)
print(whole.stop_reason_)

# %%
# A disk that fails
# -----------------
# Any object with ``shape``, ``dtype`` and ``read`` is a source. This one has a bad
# cable. With ``checkpoint``, the state is written every so often; the default is every
# ten minutes.


class BadCable:
    """The file, until it has been read 70 times."""

    def __init__(self, path):
        self.file = somf.sources.open_source(path)
        self.shape, self.dtype = self.file.shape, self.file.dtype
        self.left = 70

    def read(self, rows):
        """Return the samples, or fail."""
        if self.left == 0:
            raise OSError("the disk does not answer")
        self.left -= 1
        return self.file.read(rows)


checkpoints = Path(folder.name) / "checkpoints"
broken = SOMF(**model.get_params())
broken.set_params(checkpoint=checkpoints, checkpoint_steps=20)
try:
    broken.fit(BadCable(path))
except OSError as error:
    print(f"{error} after {broken.n_steps_} iterations")
print("left:", *sorted(file.name for file in checkpoints.iterdir()))

# %%
# Go on
# -----
# ``resume`` takes the newest checkpoint that is whole, and the data. It ends with the
# same bits as the run that was never stopped.
resumed = SOMF.resume(checkpoints, path)
same = np.array_equal(resumed.components_, whole.components_)
print(f"{resumed.n_steps_} iterations, the same bits: {same}")

# %%
# The trace goes through the failure.
figure, ax = plt.subplots(figsize=(7, 3.5))
ax.plot(whole.trace_["step"], whole.trace_["objective"], lw=4, color="0.8")
before = resumed.trace_["step"] <= 60
for part, label in ((before, "before the failure"), (~before, "resumed")):
    steps, objective = (resumed.trace_[name][part] for name in ("step", "objective"))
    ax.plot(steps, objective, label=label)
ax.set_xlabel("iteration")
ax.set_ylabel("objective of the batch")
ax.legend()
figure.tight_layout()
plt.show()

# %%
# Zarr and HDF5 files are read in the same way, chunk by chunk; ``somf convert`` writes
# chunks of which only the observed features are read.
folder.cleanup()
