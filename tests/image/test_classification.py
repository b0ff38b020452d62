"""The example on Indian Pines, with few bands: codes against other features."""

import numpy as np
import pytest
from scenes import small
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from somf.sources import PatchSource

pytestmark = pytest.mark.slow  # they learn dictionaries


def test_codes_complete_a_map_better_than_spectra():
    """Pixels of the test lie among those of the training: place counts."""
    datasets = pytest.importorskip("tensorly.datasets")
    scene = datasets.load_indian_pines()
    cube = np.asarray(scene.tensor, np.float32)[:, :, ::20]
    labels = np.asarray(scene.ticks[0])
    known, y = labels > 0, labels[labels > 0]
    model = small(
        128, setting="non-negative", patch_size=(16, 16), nonzero=0.05, step=3
    )
    codes = np.sqrt(model.fit(cube).transform(cube)[known])
    spectra = cube[known]
    train, test = train_test_split(
        np.arange(len(y)), train_size=0.1, stratify=y, random_state=0
    )

    def accuracy(X):
        linear = LogisticRegression(tol=0.01, max_iter=500)
        classifier = make_pipeline(StandardScaler(), linear).fit(X[train], y[train])
        return classifier.score(X[test], y[test])

    ours = accuracy(codes)
    assert ours > accuracy(spectra) + 0.08
    assert ours > accuracy(PCA().fit_transform(spectra)) + 0.08
    mirrored = np.pad(cube, [(8, 7), (8, 7), (0, 0)], "symmetric")
    patches = PatchSource(mirrored, (16, 16)).read(np.flatnonzero(known))
    pca = PCA(128, random_state=0).fit(patches[::10])
    assert ours > accuracy(pca.transform(patches)) + 0.02
