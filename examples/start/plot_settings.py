"""
Three settings on the same data
===============================

Sparse codes, sparse atoms, or non-negative parts: what the three presets make of the
same handwritten digits.
"""

# %%
# The digits come with scikit-learn: 1797 pictures of 8 by 8 pixels.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from somf import SOMF, alpha_max

X = load_digits().data.astype(np.float32) / 16
K = 16

# %%
# How sparse, says ``alpha``, and it means something else in each setting. For sparse
# codes a part of :func:`somf.alpha_max` is a start. For sparse atoms it is 0.1/m for
# atoms that cover about m features, here 10.
settings = {
    "dictionary learning": SOMF.dictionary_learning(K, alpha=0.05 * alpha_max(X)),
    "sparse components": SOMF.sparse_components(K, alpha=0.1 / 10),
    "non-negative": SOMF.nmf(
        K, alpha=0.005 * alpha_max(X, positive_code=True, positive_dict=True)
    ),
}
for model in settings.values():
    model.set_params(batch_size=100, n_epochs=20, random_state=0).fit(X)

# %%
# Dictionary learning explains a digit by few atoms, each of which may be a whole digit.
# Sparse components cover few pixels, and every digit uses all of them. Non-negative
# atoms only add up, so that many of them are strokes.
figure, axes = plt.subplots(1, 3, figsize=(9, 3.5))
for ax, (name, model) in zip(axes, settings.items(), strict=True):
    atoms = model.components_ / np.abs(model.components_).max(axis=1, keepdims=True)
    framed = np.pad(atoms.reshape(4, 4, 8, 8), ((0, 0), (0, 0), (0, 1), (0, 1)))
    picture = framed.swapaxes(1, 2).reshape(36, 36)[:-1, :-1]
    ax.imshow(picture, cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set_title(name)
    ax.set_xticks(np.arange(8, 35, 9), [])
    ax.set_yticks(np.arange(8, 35, 9), [])
    ax.tick_params(length=0)
    ax.grid(color="0.7")
figure.tight_layout()

# %%
# The same in numbers. The error is the part of the energy of X that is not explained:
# with the same number of atoms the settings are not far from each other.
print(f"{'':20} codes not zero  pixels of an atom  error")
for name, model in settings.items():
    codes = model.transform(X)
    density = np.mean(codes != 0)
    pixels = np.count_nonzero(np.abs(model.components_) > 1e-6, axis=1).mean()
    error = np.sum((X - model.inverse_transform(codes)) ** 2) / np.sum(X**2)
    print(f"{name:20} {density:14.0%}  {pixels:17.1f}  {error:5.0%}")

# %%
# Ratios between 0 and 1 mix penalties: ``code_l1_ratio`` for the codes,
# ``dict_l1_ratio`` for the atoms. Both signs can be chosen freely as well.
plt.show()
