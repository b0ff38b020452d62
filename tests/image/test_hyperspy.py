"""With hyperspy: its signals as images, and our estimators as its algorithms."""

import numpy as np
import pytest
from scenes import make_image, small

from somf import SOMF
from somf.image import PatchDictionary

pytestmark = pytest.mark.slow  # they learn dictionaries

hyperspy = pytest.importorskip("hyperspy", reason="hyperspy is not installed")
hs = pytest.importorskip("hyperspy.api")


@pytest.fixture
def spectra():
    """A spectrum image of four positive sources."""
    return hs.signals.Signal1D(make_image((20, 18, 30)))


def error_of(signal):
    model = np.asarray(signal.get_decomposition_model().data)
    data = np.asarray(signal.data)
    return np.mean((model - data) ** 2) / np.mean((data - data.mean()) ** 2)


ALGORITHMS = {
    "SOMF": lambda: SOMF.nmf(4, alpha=1e-3, n_epochs=50, tol=0, random_state=0),
    "PatchDictionary": lambda: PatchDictionary(
        8,
        setting="non-negative",
        patch_size=(1, 1),
        nonzero=0.5,
        n_threads=1,
        random_state=0,
    ),
}


needs_lazy_algorithms = pytest.mark.skipif(
    tuple(map(int, hyperspy.__version__.split(".")[:2])) < (2, 5),
    reason="hyperspy before 2.5 takes only algorithms of its own for lazy signals",
)


@pytest.mark.parametrize(
    "lazy", [False, pytest.param(True, marks=needs_lazy_algorithms)]
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_the_algorithm_of_a_decomposition(spectra, name, lazy):
    signal = spectra.as_lazy() if lazy else spectra
    algorithm = ALGORITHMS[name]()
    k = algorithm.n_components
    settings = dict(print_info=False, output_dimension=k, return_info=True)
    found = signal.decomposition(algorithm=algorithm, **settings)
    factors = np.asarray(signal.learning_results.factors)
    loadings = np.asarray(signal.learning_results.loadings)
    assert factors.shape == (30, k)
    assert loadings.shape == (360, k)
    assert min(factors.min(), loadings.min()) >= 0
    if not lazy:
        assert found is algorithm
        np.testing.assert_allclose(factors, algorithm.components_.T)
    assert error_of(signal) < 0.1
    assert signal.get_decomposition_loadings().data.shape == (k, 20, 18)


@pytest.mark.parametrize("lazy", [False, True])
def test_signals_are_images(spectra, lazy):
    signal = spectra.as_lazy() if lazy else spectra
    expected = small().fit(spectra.data)
    model = small().fit(signal)
    np.testing.assert_array_equal(model.components_, expected.components_)
    codes = model.transform(signal)
    np.testing.assert_array_equal(codes, expected.transform(spectra.data))
    assert model.denoise(signal, 0.1).shape == (20, 18, 30)


def test_images_as_signals(spectra):
    grey = hs.signals.Signal2D(spectra.data[:, :, 0])
    model = small().fit(grey)
    assert model.atoms_.shape == (12, 5, 4, 1)
    assert model.denoise(grey, 0.1).shape == (20, 18)
