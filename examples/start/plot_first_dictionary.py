"""
A first dictionary
==================

Learn the patterns that the patches of a photograph are made of, look at them, and put
the photograph together from a few of them.
"""

# %%
# A sample is a patch
# -------------------
# The photograph comes with scikit-learn. :class:`somf.sources.PatchSource` serves its
# patches, 12 by 12 pixels in three colours and 4 pixels apart, without making an array
# of all of them. The mean of each patch is taken out: what is left is structure.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from somf import SOMF, alpha_max
from somf.sources import PatchSource

photo = load_sample_image("china.jpg")[:426].astype(np.float32) / 255
photo = photo.reshape(213, 2, 320, 2, 3).mean(axis=(1, 3))  # half the size
patches = PatchSource(photo, (12, 12), center=True, step=4)
n_samples, n_features = patches.shape
print(f"{n_samples} patches of {n_features} numbers")

# %%
# Choose alpha and fit
# --------------------
# ``alpha`` says how sparse codes are. Above :func:`somf.alpha_max` all of them are
# zero; a small part of it is a good start. Everything else is left to the defaults.
some = patches.read(np.arange(0, n_samples, 10))
model = SOMF.dictionary_learning(64, alpha=0.02 * alpha_max(some), random_state=0)
model.fit(patches)
print(f"{model.n_iter_} epochs, {model.n_steps_} iterations: {model.stop_reason_}")

# %%
# Look at the atoms
# -----------------
# ``components_`` holds an atom a row. Edges, textures and colours: what the photograph
# has most of.


def show_atom(ax, atom):
    """Draw an atom as a picture, grey where it is zero."""
    ax.imshow(0.5 + 0.5 * atom.reshape(12, 12, 3) / np.abs(atom).max())
    ax.axis("off")


figure, axes = plt.subplots(6, 10, figsize=(7, 4.5))
used = np.abs(model.transform(some)).sum(axis=0)
for ax, j in zip(axes.flat, np.argsort(-used), strict=False):
    show_atom(ax, model.components_[j])
figure.suptitle("Atoms, the most used first", y=0.99)
figure.tight_layout(pad=0.3, rect=(0, 0, 1, 0.97))

# %%
# Code and decode
# ---------------
# ``transform`` gives the codes of samples, most of them zero, and ``inverse_transform``
# the samples that codes stand for. Here are the patches of a part of the photograph,
# side by side, and what is left of them.
part = photo[40:136, 120:264]
plain, centred = (
    PatchSource(part, (12, 12), center=center, step=12).read(np.arange(8 * 12))
    for center in (False, True)
)
codes = model.transform(centred)
print(f"{np.count_nonzero(codes, axis=1).mean():.1f} atoms for a patch of 432 numbers")


def assemble(samples):
    """Put patches side by side."""
    return samples.reshape(8, 12, 12, 12, 3).swapaxes(1, 2).reshape(part.shape)


means = plain - centred
figure, axes = plt.subplots(1, 3, figsize=(9, 2.4))
titles = ("means of the patches", "with a few atoms each", "photograph")
shown = (means, means + model.inverse_transform(codes), plain)
for ax, title, samples in zip(axes, titles, shown, strict=True):
    ax.imshow(assemble(samples).clip(0, 1))
    ax.set_title(title)
    ax.axis("off")
figure.tight_layout()

# %%
# Keep it
# -------
# ``model.save("photo.safetensors")`` writes one file, and
# ``SOMF.load("photo.safetensors")`` reads it. Both run no code of the file.
plt.show()
