"""
Classify the crops of Indian Pines from sparse codes
====================================================

A dictionary of patches turns every pixel of a hyperspectral image into a sparse code of
what surrounds it. A linear classifier of the codes is compared with one of the raw
spectra, and with ones of principal components, on the same pixels.
"""

# %%
# The image and its ground truth
# ------------------------------
# The AVIRIS scene comes with the package tensorly: 145 x 145 pixels, 200 bands, and the
# crop on half of the pixels, in 16 classes.

import matplotlib.pyplot as plt
import numpy as np
from tensorly.datasets import load_indian_pines

scene = load_indian_pines()
cube = np.asarray(scene.tensor, dtype=np.float32)
labels = np.asarray(scene.ticks[0])
known = labels > 0

# %%
# Codes
# -----
# Non-negative atoms of 16 x 16 pixels; 3 % of the codes are not zero. Every eighth band
# is enough for the dictionary, and keeps this example short.

from somf.image import PatchDictionary

bands = slice(None, None, 8)
model = PatchDictionary(
    256, setting="non-negative", bands=bands, step=2, n_epochs=3, random_state=0
)
codes = model.fit(cube).transform(cube)
print("code map:", codes.shape, f"{np.mean(codes != 0):.1%} of it is not zero")

# %%
# The other features
# ------------------
# Spectra as they are, their principal components, and as many principal components of
# the same patches as there are atoms.

from sklearn.decomposition import PCA

from somf.sources import PatchSource

mirrored = np.pad(cube[:, :, bands], [(8, 7), (8, 7), (0, 0)], "symmetric")
patches = PatchSource(mirrored, (16, 16))
pca = PCA(256, random_state=0).fit(patches.read(np.arange(0, patches.shape[0], 10)))
of_patches = pca.transform(patches.read(np.flatnonzero(known)))
features = {
    "raw spectra": cube[known],
    "PCA of the spectra": PCA(100, random_state=0).fit_transform(cube[known]),
    "PCA of the patches": of_patches,
    "codes of the patches": np.sqrt(codes[known]),  # large codes are much larger
    "codes of wrong pixels": np.sqrt(codes[:, ::-1][known]),  # a control
}

# %%
# One linear classifier for all
# -----------------------------
# It learns from a tenth of the labelled pixels, the same ones for all features: drawn
# at random, as is usual with this image, and then from half of the scene, in blocks of
# 24 x 24 pixels, to classify the other half. Crops that only the other half has are
# left out.

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

y = labels[known]
train, test = train_test_split(
    np.arange(len(y)), train_size=0.1, stratify=y, random_state=0
)
rows, columns = np.nonzero(known)
block = rows // 24 * 7 + columns // 24
order = np.random.default_rng(0).permutation(np.unique(block))
apart = np.isin(block, order[: len(order) // 2])
judged = apart & np.isin(y, y[~apart])
accuracy, maps = {}, {}
for name, X in features.items():
    classifier = make_pipeline(
        StandardScaler(), LogisticRegression(tol=0.01, max_iter=500)
    )
    classifier.fit(X[train], y[train])
    accuracy[name] = classifier.score(X[test], y[test])
    maps[name] = np.zeros(labels.shape)
    maps[name][known] = classifier.predict(X)
    classifier.fit(X[~apart], y[~apart])
    elsewhere = classifier.score(X[judged], y[judged])
    print(
        f"{name:22} {X.shape[1]:3} numbers, overall accuracy {accuracy[name]:.1%}, "
        f"on other blocks {elsewhere:.1%}"
    )

# %%
# On pixels drawn at random, codes of patches are ahead. Do not conclude that they know
# crops better: pixels of the test lie beside those of the training, their patches
# overlap, and codes tell where a pixel is. Codes of the wrong pixels, of the scene
# mirrored, do nearly as well. On blocks that were not learned from, raw spectra and
# their principal components are ahead. Codes of large patches fill in a map that is
# labelled here and there; for fields that were never seen, use spectra.

shown = {"ground truth": labels, **maps}
figure, axes = plt.subplots(1, len(shown), figsize=(15, 3.2), layout="constrained")
for axis, (name, image) in zip(axes, shown.items(), strict=True):
    axis.imshow(np.ma.masked_equal(image, 0), cmap="tab20", vmin=1, vmax=20)
    axis.set_title(f"{name}\n{accuracy[name]:.1%}" if name in accuracy else name)
    axis.axis("off")

# %%
# What some atoms look like, in false colours, and their mean spectra.

wavelengths = np.asarray(scene.ticks[1])[bands]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.imshow(model.atom_grid(n_atoms=64))
left.axis("off")
used = np.argsort(-codes.sum(axis=(0, 1)))[:6]
right.plot(wavelengths, model.atom_spectra_[used].T)
right.set(xlabel="wavelength (nm)", ylabel="mean of the atom")
plt.show()
