"""
Take the noise off a hyperspectral cube
=======================================

We add noise of a known size to an AVIRIS image, learn a dictionary of patches from the
noisy image alone, and take the noise off again. The result is compared with two common
ways: principal components of the spectra, and the dictionary learning of scikit-learn.
"""

# %%
# The image
# ---------
# The Indian Pines scene comes with the package tensorly. Every fifth band, and part of
# the scene, keep this example short.

import matplotlib.pyplot as plt
import numpy as np
from tensorly.datasets import load_indian_pines

cube = np.asarray(load_indian_pines().tensor, dtype=np.float32)[:72, :72, ::5]
SIGMA = 400.0  # about the spread of a band
rng = np.random.default_rng(0)
noisy = cube + SIGMA * rng.standard_normal(cube.shape).astype(np.float32)


def psnr(image):
    """Return the peak signal-to-noise ratio to the image without noise, in dB."""
    span = cube.max() - cube.min()
    return 10 * np.log10(span**2 / np.mean((image - cube) ** 2))


# %%
# Learn from the noisy image, and denoise it
# ------------------------------------------
# Nobody tells how much noise there is: it is measured. Patches are small, since there
# is one small image to learn from.

from somf.image import PatchDictionary

model = PatchDictionary(96, patch_size=(6, 6), n_epochs=4, random_state=0)
denoised = model.fit(noisy).denoise(noisy)

# %%
# Principal components
# --------------------
# Spectra are projected on their first principal components. How many is best depends on
# the noise; here the clean image itself chooses, which nobody could do in earnest.

from sklearn.decomposition import PCA

spectra = noisy.reshape(-1, cube.shape[2])


def project(n_components):
    """Return the image that the first principal components make."""
    pca = PCA(n_components).fit(spectra)
    return pca.inverse_transform(pca.transform(spectra)).reshape(cube.shape)


by_pca = max((project(n) for n in range(1, 13)), key=psnr)

# %%
# scikit-learn's dictionary learning
# ----------------------------------
# The same patches and the same number of atoms. Patches are coded by orthogonal
# matching pursuit, with the number of atoms that is best for the clean image.

import warnings

from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.feature_extraction.image import (
    extract_patches_2d,
    reconstruct_from_patches_2d,
)

patches = extract_patches_2d(noisy, (6, 6))
means = patches.mean(axis=(1, 2), keepdims=True)
centred = (patches - means).reshape(len(patches), -1)
peer = MiniBatchDictionaryLearning(
    96, alpha=0.3, batch_size=256, max_iter=2, random_state=0
)
peer.fit(centred / np.linalg.norm(centred, axis=1, keepdims=True))


def code(n_atoms):
    """Return the image in which every patch is a sum of so many atoms."""
    peer.set_params(transform_n_nonzero_coefs=n_atoms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # atoms that depend on one another
        sums = peer.transform(centred) @ peer.components_
    return reconstruct_from_patches_2d(sums.reshape(patches.shape) + means, cube.shape)


by_peer = max((code(n) for n in (3, 6)), key=psnr)

# %%
# The result
# ----------

images = {
    "noisy": noisy,
    "PCA of the spectra, best number": by_pca,
    "scikit-learn, best number": by_peer,
    "PatchDictionary": denoised,
}
for name, image in images.items():
    print(f"{name:32} {psnr(image):5.2f} dB")

# %%

shown = {"without noise": cube, **images}
figure, axes = plt.subplots(1, len(shown), figsize=(13, 3.2), layout="constrained")
low, high = np.percentile(cube[:, :, 12], (1, 99))
for axis, (name, image) in zip(axes, shown.items(), strict=True):
    axis.imshow(image[:, :, 12], vmin=low, vmax=high, cmap="gray")
    axis.set_title(name if name == "without noise" else f"{name}\n{psnr(image):.1f} dB")
    axis.axis("off")

# %%
# The atoms that were used most, in false colours.

plt.figure(figsize=(5, 5), layout="constrained")
plt.imshow(model.atom_grid(n_atoms=100))
plt.axis("off")
plt.show()
