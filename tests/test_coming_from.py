"""Every row of the tables of docs/coming-from.md: the same problem, the same objective.

A test is marked with the rows that it stands for, and the last test compares these with
the tables of the page.
"""

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import (
    NMF,
    DictionaryLearning,
    MiniBatchDictionaryLearning,
    MiniBatchNMF,
    MiniBatchSparsePCA,
    SparsePCA,
    non_negative_factorization,
    sparse_encode,
)

from somf import SOMF
from somf.problem import AtomConstraint

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
ROOT = np.sqrt(2)
QUIET = {"n_threads": 1, "random_state": 0}
TESTED = {}

has_spams = pytest.mark.skipif(
    find_spec("spams") is None, reason="SPAMS is not installed (extra bench)"
)
has_nilearn = pytest.mark.skipif(
    find_spec("nilearn") is None, reason="nilearn is not installed (extra fmri)"
)


def rows(section, *names):
    """Mark a test with the rows of a table, by the first column, that it checks."""

    def mark(test):
        TESTED.setdefault(section, set()).update(names)
        return test

    return mark


def with_atoms(atoms, X, **parameters):
    """Return a model that holds these atoms."""
    model = SOMF(len(atoms), dict_init=atoms, **QUIET, **parameters).partial_fit(X)
    model.state_.D[:] = atoms
    return model


def unit_rows(A):
    return A / np.linalg.norm(A, axis=1, keepdims=True)


def planted(n_samples=80, n_features=30, k=4, seed=0, positive=False):
    """Return samples with sparse codes, and the atoms of length 1 behind them."""
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((n_samples, k)) * (rng.random((n_samples, k)) < 0.4)
    atoms = rng.standard_normal((k, n_features))
    if positive:
        codes, atoms = np.abs(codes), np.abs(atoms) * (rng.random(atoms.shape) < 0.6)
    atoms = unit_rows(atoms)
    noise = 0.05 * rng.standard_normal((n_samples, n_features))
    X = 5 * codes @ atoms + (np.abs(noise) if positive else noise)
    return X, atoms


def sparse_maps(n_samples=40, n_features=120, k=3, seed=0):
    """Return centred samples made of maps that cover few features each."""
    rng = np.random.default_rng(seed)
    maps = np.zeros((k, n_features))
    for j in range(k):
        maps[j, 30 * j : 30 * j + 20] = rng.uniform(0.5, 1.5, 20)
    X = rng.standard_normal((n_samples, k)) @ maps
    X += 0.1 * rng.standard_normal(X.shape)
    return X - X.mean(axis=0)


def learn(model, X):
    """Let a model of ours arrive, by plain online learning."""
    parameters = {"reduction": 1, "n_epochs": 150, "tol": 0, "batch_size": 40}
    return model.set_params(**parameters, **QUIET).fit(X)


# -- scikit-learn: dictionary learning -------------------------------------------------

DICTIONARY = "scikit-learn: dictionary learning"


@rows(DICTIONARY, "`alpha`", "`transform(X)`", "`components_`, `dict_init`")
@pytest.mark.parametrize(
    ("algorithm", "atol"), [("lasso_cd", 1e-3), ("lasso_lars", 1e-6)]
)
@pytest.mark.parametrize("alpha", [0.05, 0.7])
def test_codes_for_the_same_atoms(algorithm, atol, alpha):
    X, atoms = planted()
    theirs = sparse_encode(X, atoms, algorithm=algorithm, alpha=alpha, max_iter=10_000)
    objective = ((X - theirs @ atoms) ** 2).sum() / 2 + alpha * np.abs(theirs).sum()

    model = with_atoms(ROOT * atoms, X, alpha=ROOT * alpha)
    np.testing.assert_allclose(ROOT * model.transform(X), theirs, rtol=0, atol=atol)
    assert -model.score(X) * len(X) == pytest.approx(objective, rel=1e-6)


@rows(DICTIONARY, "`components_`, `dict_init`")
def test_balls_of_dictionary_learning():
    X, atoms = planted()
    theirs = MiniBatchDictionaryLearning(4, alpha=0.1, dict_init=atoms, max_iter=2)
    norms = AtomConstraint(l1_ratio=0.0).norms(ROOT * theirs.fit(X).components_)
    np.testing.assert_allclose(norms, 1)  # their border is our border


@pytest.mark.slow
@rows(DICTIONARY, "`alpha`", "`n_components`", "`positive_code`, `positive_dict`")
@pytest.mark.parametrize("positive", [False, True])
def test_learned_dictionaries_have_the_same_objective(positive):
    X, atoms = planted(positive=positive)
    rng = np.random.default_rng(1)
    start = atoms + 0.1 * rng.standard_normal(atoms.shape)
    start = unit_rows(np.abs(start) if positive else start)
    signs = {"positive_code": positive, "positive_dict": positive}
    theirs = DictionaryLearning(
        4,
        alpha=0.3,
        fit_algorithm="cd",
        dict_init=start,
        code_init=np.full((len(X), 4), 0.1),
        tol=1e-9,
        max_iter=300,
        **signs,
    ).fit(X)
    ours = SOMF.dictionary_learning(4, alpha=ROOT * 0.3, dict_init=ROOT * start)
    ours = learn(ours.set_params(**signs), X)
    assert -ours.score(X) * len(X) == pytest.approx(theirs.error_[-1], rel=1e-3)


@rows(DICTIONARY, "`batch_size`", "`max_iter`")
def test_passes_and_batches_of_dictionary_learning():
    X, _ = planted(n_samples=60)
    theirs = MiniBatchDictionaryLearning(
        4, alpha=0.1, batch_size=20, max_iter=3, tol=0, max_no_improvement=None
    ).fit(X)
    ours = SOMF(4, alpha=0.1, batch_size=20, n_epochs=3, tol=0, **QUIET).fit(X)
    assert ours.n_steps_ == theirs.n_steps_ == 9


@rows(DICTIONARY, "`n_jobs`", "`shuffle`", "`random_state`", "`callback`")
def test_names_of_dictionary_learning():
    theirs = set(inspect.signature(MiniBatchDictionaryLearning).parameters)
    assert {"n_jobs", "shuffle", "random_state", "callback"} <= theirs
    assert {"n_threads", "shuffle", "random_state"} <= set(SOMF().get_params())


# -- scikit-learn: NMF -----------------------------------------------------------------

NMF_TABLE = "scikit-learn: NMF"


@rows(NMF_TABLE, "`alpha_W`", "`l1_ratio`", "`W`, `transform(X)`")
@pytest.mark.parametrize("l1_ratio", [0.0, 0.3, 1.0])
def test_non_negative_codes_for_the_same_atoms(l1_ratio):
    X, H = planted(positive=True)
    n_features, penalty = X.shape[1], 0.01
    W, _, _ = non_negative_factorization(
        X,
        H=H,
        update_H=False,
        n_components=4,
        alpha_W=penalty,
        l1_ratio=l1_ratio,
        tol=1e-12,
        max_iter=10_000,
    )
    size, square = l1_ratio * W.sum(), (1 - l1_ratio) / 2 * (W**2).sum()
    objective = ((X - W @ H) ** 2).sum() / 2 + n_features * penalty * (size + square)

    parameters = {"alpha": n_features * penalty, "code_l1_ratio": l1_ratio}
    ours = with_atoms(H, X, positive_code=True, positive_dict=True, **parameters)
    np.testing.assert_allclose(ours.transform(X), W, rtol=0, atol=1e-6)
    assert -ours.score(X) * len(X) == pytest.approx(objective, rel=1e-6)


@pytest.mark.slow
@rows(NMF_TABLE, "`alpha_W=0`, `alpha_H=0`", "`H`, `components_`", "`n_components`")
def test_non_negative_factors_without_penalty():
    X, H = planted(positive=True)
    rng = np.random.default_rng(1)
    start = H + 0.1 * rng.random(H.shape)
    W = np.full((len(X), 4), 0.5)
    theirs = NMF(4, init="custom", tol=1e-8, max_iter=3000)
    W = theirs.fit_transform(X, W=W, H=start.copy())
    objective = ((X - W @ theirs.components_) ** 2).sum() / 2

    scale = np.array([[0.3], [0.5], [1.0], [1.2]])  # H may have any scale
    ours = learn(SOMF.nmf(4, alpha=0, dict_init=scale * unit_rows(start)), X)
    assert -ours.score(X) * len(X) == pytest.approx(objective, rel=0.01)


@rows(NMF_TABLE, "`batch_size`", "`max_iter`")
def test_passes_and_batches_of_nmf():
    X, _ = planted(n_samples=60, positive=True)
    theirs = MiniBatchNMF(
        4, batch_size=20, max_iter=3, tol=0, max_no_improvement=None, random_state=0
    ).fit(X)
    ours = SOMF.nmf(4, alpha=0.1, batch_size=20, n_epochs=3, tol=0, **QUIET).fit(X)
    assert ours.n_steps_ == theirs.n_steps_ == 9


@rows(NMF_TABLE, "`beta_loss`", "`forget_factor`", "`alpha_H`")
def test_names_of_nmf():
    theirs = inspect.signature(MiniBatchNMF).parameters
    assert theirs["beta_loss"].default == "frobenius"
    assert {"forget_factor", "alpha_H"} <= set(theirs)
    assert "weights" in SOMF().get_params()


# -- scikit-learn: sparse PCA ----------------------------------------------------------

SPARSE_PCA = "scikit-learn: sparse PCA"


@pytest.mark.slow
@rows(SPARSE_PCA, "`alpha`", "`n_components`")
def test_sparse_pca_is_dictionary_learning_of_the_transpose():
    X = sparse_maps()
    theirs = SparsePCA(3, alpha=1.0, method="cd", tol=1e-9, max_iter=500).fit(X)
    ours = learn(SOMF.dictionary_learning(3, alpha=ROOT), np.ascontiguousarray(X.T))
    assert -ours.score(X.T) * X.shape[1] == pytest.approx(theirs.error_[-1], rel=0.01)


@pytest.mark.slow
@rows(SPARSE_PCA, "`components_`", "`batch_size`", "`max_iter`")
def test_maps_of_sparse_pca():
    X = sparse_maps()
    theirs = MiniBatchSparsePCA(
        3, alpha=1.0, batch_size=40, max_iter=300, random_state=0
    ).fit(X)
    ours = learn(SOMF.dictionary_learning(3, alpha=ROOT), np.ascontiguousarray(X.T))
    found = unit_rows(ours.transform(X.T).T)
    alike = np.abs(found @ theirs.components_.T)
    np.testing.assert_allclose(alike.max(axis=0), 1, atol=1e-3)


@pytest.mark.slow
@rows(SPARSE_PCA, "`alpha`, with the maps as atoms")
def test_one_map_of_sparse_pca_is_ours_with_another_alpha():
    X = sparse_maps(k=1)
    transposed = np.ascontiguousarray(X.T)
    theirs = learn(SOMF.dictionary_learning(1, alpha=ROOT * 2.0), transposed)
    series = theirs.components_[0] / ROOT
    maps = ROOT * theirs.transform(X.T)[:, 0]
    assert np.linalg.norm(series) == pytest.approx(1)  # on the border, as it should be

    ours = SOMF.sparse_components(1, alpha=2.0 / np.abs(maps).sum())
    found = learn(ours, X).components_[0]
    found = found * np.sign(found @ maps)
    np.testing.assert_allclose(found, maps / np.abs(maps).sum(), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(found != 0, maps != 0)


@rows(SPARSE_PCA, "`ridge_alpha`", "`transform(X)`")
def test_ridge_codes_of_sparse_pca():
    X = sparse_maps()
    theirs = SparsePCA(3, alpha=1.0, ridge_alpha=0.3, max_iter=20).fit(X)
    atoms = theirs.components_
    ours = with_atoms(atoms, X, alpha=0.3, code_l1_ratio=0.0)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-6)


# -- nilearn ---------------------------------------------------------------------------

NILEARN = "nilearn: DictLearning"


def image_of(A, shape):
    """Return volumes, a row of A each, and the mask that they fill."""
    from nibabel import Nifti1Image

    return Nifti1Image(A.T.reshape(*shape, len(A)), np.eye(4))


def nilearn_maps(X, start, **parameters):
    """Return the maps of DictLearning that learned from X as it is."""
    from nilearn.decomposition import DictLearning

    shape = (5, 6, 4)
    model = DictLearning(
        len(start),
        mask=image_of(np.ones((1, 120), np.int8), shape).slicer[..., 0],
        dict_init=image_of(start, shape),
        reduction_ratio=1.0,
        smoothing_fwhm=None,
        standardize=False,
        detrend=False,
        random_state=0,
        **parameters,
    )
    return model.fit(image_of(X, shape)).components_


@pytest.mark.slow
@has_nilearn
@pytest.mark.filterwarnings("ignore")  # of nilearn and what it calls
@rows(
    NILEARN, "`alpha`", "`components_`", "`n_components`", "`dict_init`", "`n_epochs`"
)
@rows(NILEARN, "`batch_size`", "`reduction_ratio`")
def test_maps_of_nilearn():
    X = sparse_maps().astype(np.float64)
    transposed = np.ascontiguousarray(X.T)
    ours = learn(SOMF.dictionary_learning(3, alpha=ROOT * 1.0), transposed)
    maps = unit_rows(ours.transform(transposed).T)
    start = maps + 0.02 * np.random.default_rng(0).standard_normal(maps.shape)
    theirs = nilearn_maps(X, start, alpha=1.0, n_epochs=50, batch_size=20)
    np.testing.assert_allclose(np.abs((maps * theirs).sum(axis=1)), 1, atol=1e-3)
    assert np.mean((maps != 0) == (theirs != 0)) > 0.98


@pytest.mark.slow
@has_nilearn
@pytest.mark.filterwarnings("ignore")
@rows(NILEARN, "`alpha`, with the maps as atoms")
def test_equal_maps_of_nilearn_are_ours_with_another_alpha():
    rng = np.random.default_rng(0)
    maps = np.zeros((2, 120))
    maps[0, 10:30] = maps[1, 60:80] = rng.uniform(0.3, 1.5, 20)
    series = rng.standard_normal((40, 2))
    X = 10 * np.linalg.qr(series - series.mean(axis=0))[0] @ maps
    alpha = 5.0
    theirs = nilearn_maps(X, maps + 0.01, alpha=alpha, n_epochs=50)
    size = np.maximum(10 * maps - alpha, 0).sum(axis=1)  # of each, with unit series

    ours = SOMF.sparse_components(2, alpha=alpha / size[0], dict_init=maps / 20)
    found = unit_rows(learn(ours, X).components_)
    np.testing.assert_allclose(np.abs(found @ theirs.T), np.eye(2), atol=1e-3)
    np.testing.assert_array_equal(found != 0, 10 * maps > alpha)


# -- SPAMS -----------------------------------------------------------------------------

SPAMS = "SPAMS: trainDL and nmf"
BALLS = [(0, 0.0), (1, 0.3), (1, 0.9), (3, 0.3), (3, 0.9), (3, 1.0)]


def ratio_and_scale(mode_d, gamma1):
    """Return our dict_l1_ratio and the c of the table."""
    if mode_d == 0:
        return 0.0, ROOT
    weight = 1.0 if mode_d == 1 else 1 - gamma1
    c = (gamma1 + np.sqrt(gamma1**2 + 8 * weight)) / 2
    return gamma1 / c, c


@has_spams
@rows(SPAMS, "`modeD=0`", "`modeD=1`, `gamma1`", "`modeD=3`, `gamma1`", "`D`", "`X`")
@pytest.mark.parametrize(("mode_d", "gamma1"), BALLS)
def test_balls_of_spams(mode_d, gamma1):
    import spams

    X, _ = planted()
    D = spams.trainDL(
        np.asfortranarray(X.T),
        K=4,
        lambda1=0.05,
        iter=30,
        batchsize=40,
        modeD=mode_d,
        gamma1=gamma1,
        numThreads=1,
        verbose=False,
    )
    ratio, c = ratio_and_scale(mode_d, gamma1)
    np.testing.assert_allclose(AtomConstraint(ratio).norms(c * D.T), 1, rtol=1e-6)


@has_spams
@rows(SPAMS, "`lambda1`, `lambda2`", "`lasso(X, D, ...)`")
@pytest.mark.parametrize(("lambda1", "lambda2"), [(0.1, 0.0), (0.5, 0.2)])
@pytest.mark.parametrize(("mode_d", "gamma1"), [(0, 0.0), (1, 0.3), (3, 0.3)])
@pytest.mark.parametrize("positive", [False, True])
def test_codes_of_spams(lambda1, lambda2, mode_d, gamma1, positive):
    import spams

    X, atoms = planted()
    codes = spams.lasso(
        np.asfortranarray(X.T),
        np.asfortranarray(atoms.T),
        lambda1=lambda1,
        lambda2=lambda2,
        mode=2,
        pos=positive,
        numThreads=1,
    )
    theirs = codes.toarray().T
    objective = ((X - theirs @ atoms) ** 2).sum() / 2
    objective += lambda1 * np.abs(theirs).sum() + lambda2 / 2 * (theirs**2).sum()

    _, c = ratio_and_scale(mode_d, gamma1)
    alpha = c * lambda1 + c**2 * lambda2
    ours = with_atoms(
        c * atoms,
        X,
        alpha=alpha,
        code_l1_ratio=c * lambda1 / alpha,
        positive_code=positive,
    )
    np.testing.assert_allclose(c * ours.transform(X), theirs, rtol=0, atol=1e-6)
    assert -ours.score(X) * len(X) == pytest.approx(objective, rel=1e-6)


@pytest.mark.slow
@has_spams
@rows(SPAMS, "`K`", "`batchsize`", "`iter`", "`posAlpha`, `posD`", "`numThreads`")
@pytest.mark.parametrize(("mode_d", "gamma1"), BALLS)
def test_dictionaries_of_spams_have_the_same_objective(mode_d, gamma1):
    import spams

    X, atoms = planted(positive=True)
    ratio, c = ratio_and_scale(mode_d, gamma1)
    start = AtomConstraint(ratio, positive=True).rescale(atoms + 0.02)
    lambda1, lambda2 = 0.1, 0.05
    D = spams.trainDL(
        np.asfortranarray(X.T),
        D=np.asfortranarray(start.T / c),
        lambda1=lambda1,
        lambda2=lambda2,
        batchsize=40,
        iter=300,
        modeD=mode_d,
        gamma1=gamma1,
        posAlpha=True,
        posD=True,
        numThreads=1,
        verbose=False,
    )
    alpha = c * lambda1 + c**2 * lambda2
    parameters = {
        "alpha": alpha,
        "code_l1_ratio": c * lambda1 / alpha,
        "dict_l1_ratio": ratio,
        "positive_code": True,
        "positive_dict": True,
    }
    theirs = with_atoms(np.ascontiguousarray(c * D.T), X, **parameters)
    ours = learn(SOMF(4, dict_init=start, **parameters), X)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=2e-3)


@pytest.mark.slow
@has_spams
@rows(SPAMS, "`nmf(X, K)`")
def test_nmf_of_spams():
    import spams

    X, _ = planted(positive=True)
    D = spams.nmf(np.asfortranarray(X.T), K=4, iter=500, batchsize=40, numThreads=1)
    parameters = {"alpha": 0.0, "positive_code": True, "positive_dict": True}
    theirs = with_atoms(np.ascontiguousarray(ROOT * D.T), X, **parameters)
    start = theirs.components_ + 0.02  # away from it, to come back
    ours = learn(SOMF.nmf(4, alpha=0.0, dict_init=start), X)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=0.02)


# -- the page --------------------------------------------------------------------------


@pytest.mark.skipif(
    not PAGE.exists(), reason="the page is not here: an installed wheel"
)
def test_every_row_of_the_page_is_tested():
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        table = re.findall(r"^\| (.+?) \|", text, re.M)
        if table:
            found[title] = {name for name in table if name != "theirs"}
    assert found == TESTED
