"""
Maps of the brain
=================

From fMRI records to sparse maps of the brain, compared with those of nilearn's
``DictLearning``. The records are simulated, so that the true maps are known; your own
go in as a list of files.
"""

# %%
# Records
# -------
# Four subjects whose maps are alike but not the same, with noise that is smooth in
# space and autocorrelated in time, on the grey matter of the MNI template.

import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from nilearn import plotting
from nilearn.decomposition import DictLearning
from nilearn.masking import apply_mask
from scipy.optimize import linear_sum_assignment

from somf.fmri import BrainDictionary, simulate

brains = simulate(n_subjects=4, n_volumes=120, n_maps=15, resolution=6)
print(brains.images[0].shape)

# %%
# Learn the maps
# --------------
# Records are masked once, and then streamed. `alpha` is chosen so that a voxel belongs
# to two maps on average, and together they cover the brain.

common = {
    "mask": brains.mask_img,
    "smoothing_fwhm": None,
    "random_state": 0,
}
start = time.perf_counter()
model = BrainDictionary(15, **common).fit(brains.images)
print(f"{time.perf_counter() - start:.1f} s, alpha {model.alpha_:.2g}")

plotting.plot_prob_atlas(model.components_img_, draw_cross=False)
plt.show()

# %%
# The same with nilearn
# ---------------------
# The class has the parameters and attributes of nilearn's, so one name is all that
# changes.

start = time.perf_counter()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer = DictLearning(15, standardize="zscore_sample", **common)
    peer.fit(brains.images)
print(f"{time.perf_counter() - start:.1f} s")


def matched_correlation(found, true):
    """Correlation of each true map with the one it is paired with."""
    n = len(found)
    correlation = np.abs(np.corrcoef(found, true)[:n, n:])
    pairs = linear_sum_assignment(-correlation)
    return correlation[pairs]


true = apply_mask(brains.maps_img, brains.mask_img)
scores = {
    "somf": matched_correlation(model.components_, true),
    "nilearn": matched_correlation(peer.components_, true),
}
figure, axes = plt.subplots(layout="constrained", figsize=(6, 3))
for name, values in scores.items():
    print(f"{name}: {values.mean():.2f} on average")
    axes.plot(np.sort(values)[::-1], "o-", label=name)
axes.set(xlabel="map, the best first", ylabel="correlation with truth")
axes.legend()
plt.show()

# %%
# Time series, and what they share
# --------------------------------
# `transform` gives a time series for each map of each record.

series = model.transform(brains.images)
connectivity = np.mean([np.corrcoef(part.T) for part in series], axis=0)
plotting.plot_matrix(connectivity, vmin=-1, vmax=1)
plt.show()
