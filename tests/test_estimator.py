"""`SOMF` as scikit-learn users meet it."""

import copy
import pickle
import sys
import warnings

import numpy as np
import pandas
import pytest
import reference
import scipy.sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from somf import SOMF, alpha_max
from somf.problem import AtomConstraint, CodePenalty
from somf.sources import PatchSource


def make_data(n_samples=120, n_features=50, k=4, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((n_samples, k)) * (rng.random((n_samples, k)) < 0.5)
    X = codes @ rng.standard_normal((k, n_features))
    return (X + 0.05 * rng.standard_normal(X.shape)).astype(dtype)


def make_model(**parameters):
    defaults = dict(n_components=4, alpha=0.1, batch_size=10, tol=0, random_state=0)
    return SOMF(**(defaults | parameters))


def same_bits(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


# -- scikit-learn's own checks ---------------------------------------------------------


@parametrize_with_checks(
    [
        SOMF(),
        SOMF.sparse_components(3),
        SOMF.nmf(3),
        SOMF(code_estimator="gram", aggregation="masked", mask="bernoulli"),
        SOMF(code_estimator="averaged", n_threads=1),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# -- the objective ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        SOMF.dictionary_learning(4, alpha=0.3),
        SOMF.sparse_components(4, alpha=0.01),
        SOMF(4, alpha=0.2, code_l1_ratio=0.5, dict_l1_ratio=0.3),
        SOMF.nmf(4, alpha=0.2),
    ],
    ids=["dictionary learning", "sparse components", "elastic net", "nmf"],
)
def test_objective_by_hand(model):
    X = make_data()
    if model.positive_code:
        X = np.abs(X)
    model.set_params(batch_size=20, random_state=0).fit(X)
    D = model.components_
    codes = model.transform(X)
    penalty = model.code_l1_ratio * np.abs(codes).sum(axis=1)
    penalty += (1 - model.code_l1_ratio) / 2 * (codes**2).sum(axis=1)
    losses = 0.5 * ((X - codes @ D) ** 2).sum(axis=1) + model.alpha * penalty
    assert model.score(X) == pytest.approx(-losses.mean(), rel=1e-9)
    norms = model.dict_l1_ratio * np.abs(D).sum(axis=1)
    norms += (1 - model.dict_l1_ratio) / 2 * (D**2).sum(axis=1)
    assert norms.max() <= 1 + 1e-12
    np.testing.assert_allclose(model.inverse_transform(codes), codes @ D)
    exact = [
        reference.solve_code(
            D @ D.T, D @ x, model.alpha, model.code_l1_ratio, model.positive_code
        )
        for x in X[:10]
    ]
    best = reference.objective(X[:10], D.T, exact, model.alpha, model.code_l1_ratio)
    assert -model.score(X[:10]) <= best * (1 + 1e-5)


@pytest.mark.parametrize("positive_code", [False, True])
@pytest.mark.parametrize("positive_dict", [False, True])
@pytest.mark.parametrize("dict_l1_ratio", [0.0, 0.4, 1.0])
def test_alpha_max_is_where_codes_vanish(dict_l1_ratio, positive_dict, positive_code):
    X = -np.abs(make_data()) - 1  # what faces positive atoms has the other sign
    if positive_dict and positive_code:
        X = -X
    signs = dict(positive_dict=positive_dict, positive_code=positive_code)
    problem = dict(code_l1_ratio=0.8, dict_l1_ratio=dict_l1_ratio, **signs)
    top = alpha_max(X, **problem)
    above = make_model(alpha=top * 1.001, **problem).fit(X)
    assert not above.transform(X).any()
    # The bound is tight: an atom of the ball reaches it.
    sample = X[np.argmax([alpha_max(x[None], **problem) for x in X])]
    codes = []
    for sign in (-1, 1):
        atom = reference.minimize_linear(sign * sample, dict_l1_ratio, positive_dict)
        below = make_model(alpha=top * 0.999, dict_init=atom[None], **problem)
        below.set_params(n_components=1).partial_fit(np.zeros((1, 50)))
        codes.append(below.transform(sample[None]))
    assert np.any(codes)


def test_alpha_max_of_sparse_and_of_incomplete_samples():
    X = make_data()
    assert alpha_max(scipy.sparse.csr_array(X)) == alpha_max(X)
    with pytest.raises(ValueError, match=r"NaN or infinity.*nan_to_num"):
        alpha_max(np.full((2, 3), np.nan))
    with pytest.raises(TypeError, match=r"open_source\(path\)"):
        alpha_max("X.npy")


def test_alpha_max_refuses_ridge():
    with pytest.raises(ValueError, match="ridge"):
        alpha_max(make_data(), code_l1_ratio=0)


def test_does_as_well_as_the_dictionary_that_made_the_data():
    rng = np.random.default_rng(3)
    atoms = rng.standard_normal((4, 60))
    codes = rng.standard_normal((400, 4)) * (rng.random((400, 4)) < 0.5)
    X = codes @ atoms + 0.05 * rng.standard_normal((400, 60))
    atoms *= np.sqrt(2) / np.linalg.norm(atoms, axis=1, keepdims=True)
    exact = [reference.solve_code(atoms @ atoms.T, atoms @ x, 2.0, 1.0) for x in X]
    truth = reference.objective(X, atoms.T, exact, 2.0, 1.0)
    for reduction in (1, 3):
        model = make_model(alpha=2.0, reduction=reduction, n_epochs=20).fit(X)
        assert -model.score(X) < 1.02 * truth


# -- fit, partial_fit, resume ----------------------------------------------------------

CHOICES = [
    dict(reduction=1),
    dict(reduction=3),
    dict(reduction=3, dict_update="observed"),
    dict(reduction=3, code_estimator="averaged"),
    dict(reduction=3, code_estimator="gram", aggregation="masked"),
    dict(reduction=3, code_estimator="exact", mask="bernoulli", mask_block=4),
    dict(reduction=3, code_l1_ratio=0.0, dict_l1_ratio=1.0),
    dict(reduction=3, positive_code=True, positive_dict=False, dict_l1_ratio=0.5),
]


def batches(n_samples, n_epochs, batch_size, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n_epochs):
        order = rng.permutation(n_samples)
        for start in range(0, n_samples, batch_size):
            yield np.sort(order[start : start + batch_size])


@pytest.mark.parametrize("choices", CHOICES)
def test_fit_is_partial_fit_over_the_same_batches(choices):
    X = make_data()
    first = make_model(dict_init=make_data(4, seed=9), shuffle=False, n_epochs=3)
    first.set_params(**choices).fit(X)
    second = clone(first)
    for _ in range(3):
        for start in range(0, len(X), 10):
            rows = np.arange(start, start + 10)
            second.partial_fit(X[rows], sample_indices=rows)
    assert same_bits(first.components_, second.components_)
    assert first.n_steps_ == second.n_steps_ == 36


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saved_and_loaded_goes_on_as_if_never_stopped(choices, dtype, tmp_path):
    X = make_data(dtype=dtype)
    steady = make_model(**choices)
    stopped = make_model(**choices)
    for i, rows in enumerate(batches(len(X), 4, 10, seed=1)):
        steady.partial_fit(X[rows], sample_indices=rows)
        stopped.partial_fit(X[rows], sample_indices=rows)
        if i in (7, 20):
            stopped.save(tmp_path / "model")
            stopped = SOMF.load(tmp_path / "model")
    assert same_bits(steady.components_, stopped.components_)
    assert same_bits(steady.state_.B, stopped.state_.B)
    assert same_bits(steady.transform(X), stopped.transform(X))
    np.testing.assert_array_equal(
        steady.trace_["objective"], stopped.trace_["objective"]
    )
    assert steady.get_params() == stopped.get_params()


@pytest.mark.parametrize("choices", [c for c in CHOICES if "aggregation" not in c])
def test_asynchronous_is_full_bit_for_bit(choices):
    X = make_data(n_features=13_000)  # several tiles, and threads share the pass
    choices = choices | {"aggregation": "full", "dict_update": "observed"}
    for n_threads in (1, 2, 3):
        full = make_model(**choices, n_threads=n_threads, n_epochs=2).fit(X)
        later = make_model(
            **(choices | {"aggregation": "async"}), n_threads=n_threads, n_epochs=2
        ).fit(X)
        assert same_bits(full.components_, later.components_)
        assert same_bits(full.state_.B, later.state_.B)


def test_same_seed_same_bits():
    X = make_data(dtype=np.float32)
    a, b, c = (make_model(random_state=s, reduction=2).fit(X) for s in (0, 0, 1))
    assert same_bits(a.components_, b.components_)
    assert not same_bits(a.components_, c.components_)
    for make in (np.random.RandomState, np.random.default_rng):
        a, b = (make_model(random_state=make(3)).fit(X) for _ in range(2))
        assert same_bits(a.components_, b.components_)


def test_copies_are_independent():
    X = make_data()
    for code_estimator in ("masked", "averaged"):
        model = make_model(reduction=2, code_estimator=code_estimator).fit(X)
        before = model.components_.copy()
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert same_bits(other.components_, before)
            other.partial_fit(X[:20])
            assert not same_bits(other.components_, before)
            assert same_bits(model.components_, before)


def test_maintained_norms_and_gram_after_1000_steps():
    rng = np.random.default_rng(0)
    X = make_data(dtype=np.float32)
    model = make_model(
        reduction=5, code_estimator="gram", code_l1_ratio=0.0, dict_l1_ratio=0.5
    )
    for _ in range(1000):
        model.partial_fit(X[rng.choice(len(X), 10, replace=False)])
    D = model.components_.astype(np.float64)
    norms = 0.5 * np.abs(D).sum(axis=1) + 0.25 * (D**2).sum(axis=1)
    np.testing.assert_allclose(model.state_.norms, norms, rtol=1e-6)
    np.testing.assert_allclose(model.state_.G, D @ D.T, atol=1e-5)
    assert norms.max() <= 1 + 1e-6


# -- what users see --------------------------------------------------------------------


def test_names_tables_and_pipelines():
    X = pandas.DataFrame(make_data(), columns=[f"voxel {i}" for i in range(50)])
    model = make_model().set_output(transform="pandas").fit(X)
    assert list(model.transform(X).columns) == [f"somf{i}" for i in range(4)]
    assert model.feature_names_in_[3] == "voxel 3"


def test_pipeline():
    X = make_data()
    pipeline = make_pipeline(StandardScaler(), make_model(reduction=2))
    assert pipeline.fit_transform(X).shape == (120, 4)
    assert list(pipeline[-1].get_feature_names_out()) == [f"somf{i}" for i in range(4)]


def test_trace_and_counters():
    X = make_data()
    model = make_model(n_epochs=3, reduction=2).fit(X, X_val=X[:20])
    trace = model.trace_
    assert model.n_iter_ == 3
    assert model.n_steps_ == len(trace["step"]) == 36
    assert trace["epoch"][-1] == 3
    assert np.isfinite(trace["validation_objective"]).sum() == 3
    assert model.objective_ == pytest.approx(-model.score(X[:20]))
    parts = sum(trace[name] for name in trace if name.startswith("seconds_"))
    steps = np.diff(trace["time"], prepend=0)
    assert np.all(parts <= steps)
    assert np.all((trace["density"] >= 0) & (trace["density"] <= 1))
    np.testing.assert_allclose(trace["reduction"], 2)
    assert "n_epochs=3" in model.stop_reason_


def test_streaming_objective_is_that_of_the_batch():
    X = make_data()
    model = make_model(reduction=1, code_tol=1e-10)
    model.partial_fit(X[:10])
    for start in range(10, 60, 10):
        before = -model.score(X[start : start + 10])
        model.partial_fit(X[start : start + 10])
        assert model.objective_ == pytest.approx(before, rel=1e-5)


def test_stops_when_nothing_is_gained():
    X = make_data()
    model = make_model(n_epochs=200, tol=0.01, patience=3).fit(X)
    assert 4 <= model.n_iter_ < 200
    assert "patience=3" in model.stop_reason_
    held_out = make_model(n_epochs=200, tol=0.01, patience=2).fit(X, X_val=X[:30])
    assert "held-out" in held_out.stop_reason_
    assert held_out.n_iter_ < 200


def test_never_stops_before_a_full_pass():
    X = make_data()
    model = make_model(n_epochs=50, tol=1.0, patience=1).fit(X)
    assert model.n_iter_ >= 1
    assert model.n_steps_ % 12 == 0


def test_reduction_schedule_ends_at_one():
    X = make_data()
    model = make_model(reduction=5, reduction_schedule="decreasing", n_epochs=10).fit(X)
    reduction = model.trace_["reduction"]
    assert reduction[0] == 5
    assert reduction[-1] == 1
    assert np.all(np.diff(reduction) <= 0)


def test_estimators_may_change_between_batches():
    X, numbers = make_data(), np.arange(len(make_data()))
    model = make_model(reduction=2, code_estimator="gram")
    for name in ("gram", "averaged", "gram", "masked", "averaged"):
        model.set_params(code_estimator=name)
        model.partial_fit(X, sample_indices=numbers)
        assert np.isfinite(model.components_).all()


def test_atoms_in_use_survive_batches_of_one_sample():
    """One sample uses one of ten atoms: the others are not idle for that."""
    rng = np.random.default_rng(0)
    X = 5 * np.eye(10)[rng.integers(10, size=400)] + 0.1 * rng.random((400, 10))
    model = SOMF(10, alpha=0.5, dict_init=np.eye(10), reduction=1, random_state=0)
    for x in X:
        model.partial_fit(x[None])
    assert model.state_.n_replaced == 0


def test_dead_atoms_are_replaced_and_counted():
    X = make_data()
    far = np.zeros((4, 50))
    far[:2] = X[:2]
    far[2:, 0] = 1e-30  # atoms that no sample has a use for
    model = make_model(dict_init=far, n_epochs=10).fit(X)
    assert model.state_.n_replaced >= 2
    assert model.trace_["replaced_atoms"][-1] == model.state_.n_replaced
    assert model.transform(X).any(axis=0).all()


@pytest.mark.parametrize("estimator", ["masked", "gram"])
def test_replaced_atoms_keep_norms_and_gram(estimator):
    X = make_data()
    far = np.zeros((4, 50))
    far[:2] = X[:2]
    far[2:, 0] = 1e-30
    model = make_model(dict_init=far, code_estimator=estimator, reduction=2)
    for start in range(0, 120, 5):
        model.partial_fit(X[start : start + 5])
    assert model.state_.n_replaced >= 2
    D = model.components_
    np.testing.assert_allclose(model.state_.norms, 0.5 * (D**2).sum(axis=1))
    if model.state_.G is not None:
        np.testing.assert_allclose(model.state_.G, D @ D.T, atol=1e-10)


def test_sources_stream_like_arrays():
    image = np.random.default_rng(0).standard_normal((20, 18, 3))
    patches = PatchSource(image, (4, 4), dtype=np.float64)
    X = patches.read(np.arange(patches.shape[0]))
    model = make_model(reduction=2, n_epochs=2)
    streamed = clone(model).fit(patches)
    held = clone(model).fit(X)
    assert same_bits(streamed.components_, held.components_)
    assert streamed.score(patches) == held.score(X)
    assert same_bits(streamed.transform(patches), held.transform(X))


def test_progress_bar_shows_the_objective(capsys, monkeypatch):
    monkeypatch.setattr("somf.progress.ProgressBar.DELAY", 0)
    make_model(progress=True, n_epochs=2).fit(make_data())
    lines = capsys.readouterr().err.splitlines()
    assert all("objective" in line for line in lines)
    assert len(lines) == 2  # one in five seconds, and the last
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    make_model(progress=True, n_epochs=2).fit(make_data())
    shown = capsys.readouterr().err
    assert "objective" in shown
    assert "samples/s" in shown
    monkeypatch.undo()
    make_model(progress="auto").fit(make_data())
    assert capsys.readouterr().err == ""


def test_scikit_learn_callbacks():
    pytest.importorskip("sklearn.callback", reason="new in scikit-learn 1.9")
    calls = []

    class Recorder:
        def setup(self, estimator, context):
            calls.append("setup")

        def teardown(self, estimator, context):
            calls.append("teardown")

        def on_fit_task_begin(self, estimator, context):
            calls.append(f"begin {context.task_name}")

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            calls.append(f"end {context.task_name}")
            assert fitted_estimator.transform(make_data()).shape == (120, 4)
            return context.task_name == "epoch" and calls.count("end epoch") == 2

    model = make_model(n_epochs=5)
    model.set_callbacks(Recorder())
    model.fit(make_data())
    epoch = ["begin epoch", "end epoch"]
    assert calls == ["setup", "begin fit", *epoch, *epoch, "end fit", "teardown"]
    assert model.n_iter_ == 2
    assert model.stop_reason_ == "a callback asked to stop"


def test_components_cannot_be_changed_by_accident():
    model = make_model().fit(make_data())
    with pytest.raises(ValueError, match="read-only"):
        model.components_[0, 0] = 1


def test_paper_weights_do_not_warn_and_others_do():
    X = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_model(weights="paper").fit(X)
    with pytest.warns(UserWarning, match="convergence is proven"):
        make_model(weight_exponent=0.6).fit(X)


def test_constraint_and_masks_may_change_between_batches():
    X = make_data()
    model = make_model(code_estimator="gram", reduction=2)
    model.partial_fit(X[:10]).set_params(dict_l1_ratio=1.0, mask_block=5)
    for start in range(10, 120, 10):
        model.partial_fit(X[start : start + 10])
    assert np.abs(model.components_).sum(axis=1).max() <= 1 + 1e-12
    D = model.components_
    np.testing.assert_allclose(model.state_.G, D @ D.T, atol=1e-12)
    assert model.state_.sampler.masks.block == 5


def test_broken_source_is_named():
    class Broken:
        shape, dtype = (30, 5), np.dtype(np.float64)

        def read(self, rows):
            X = np.ones((len(rows), 5))
            X[rows == 17] = np.nan
            return X

    with pytest.raises(ValueError, match=r"Samples \[17\] of the source"):
        make_model(batch_size=30).fit(Broken())


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.SFC64])
def test_any_generator_and_folder_can_be_saved(kind, tmp_path):
    X = make_data()
    model = make_model(
        random_state=np.random.Generator(kind(1)),
        code_estimator="gram",
        averages_folder=tmp_path,
        reduction=2,
    ).fit(X)
    assert model.state_.averages.on_disk
    model.save(tmp_path / "model")
    again = SOMF.load(tmp_path / "model")
    model.partial_fit(X[:20], sample_indices=np.arange(20))
    again.partial_fit(X[:20], sample_indices=np.arange(20))
    assert same_bits(model.components_, again.components_)


def updated_atoms(**parameters):
    """Whether one iteration changes all features, or those that it observes."""
    X = np.random.default_rng(0).standard_normal((30, 400))
    start = np.random.default_rng(1).standard_normal((3, 400))
    model = SOMF(3, alpha=0.1, dict_init=start, random_state=0, **parameters)
    before = AtomConstraint(0.0).project(start)
    moved = (model.partial_fit(X).components_ != before).any(axis=0)
    return {400: "all", 100: "observed"}[moved.sum()]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, "all"),
        ({"aggregation": "full"}, "all"),
        ({"aggregation": "masked"}, "observed"),
        ({"code_estimator": "averaged"}, "observed"),
        ({"code_estimator": "gram"}, "observed"),
        ({"code_estimator": "exact"}, "observed"),
        ({"code_estimator": "exact", "dict_update": "all"}, "all"),
        ({"dict_update": "observed"}, "observed"),
    ],
)
def test_features_that_an_iteration_updates(parameters, expected):
    assert updated_atoms(reduction=4, **parameters) == expected


def test_too_few_observed_features_for_codes_update_no_others():
    X = np.random.default_rng(0).standard_normal((30, 20))
    start = np.random.default_rng(1).standard_normal((3, 20))
    model = SOMF(3, alpha=0.1, dict_init=start, reduction=10, random_state=0)
    before = AtomConstraint(0.0).project(start)
    moved = (model.partial_fit(X).components_ != before).any(axis=0)
    assert moved.sum() == 2


@pytest.mark.parametrize("positive", [False, True])
def test_nonnegative_codes_may_be_loose_at_first(positive, monkeypatch):
    tolerances = []
    solve = CodePenalty.solve

    def spy(self, *args, tol, **options):
        tolerances.append(tol)
        return solve(self, *args, tol=tol, **options)

    monkeypatch.setattr(CodePenalty, "solve", spy)
    X = np.abs(np.random.default_rng(0).standard_normal((30, 20)))
    SOMF(3, positive_code=positive, code_tol=1e-4, random_state=0).partial_fit(X)
    assert tolerances[0] == pytest.approx(0.15 if positive else 1e-4)


def sparse_counts(n_samples=600, n_features=6000, n_topics=16):
    """Some 100 words in a text, of a vocabulary of which a topic uses a part."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(n_features, 0.02), n_topics)
    shares = rng.dirichlet(np.full(n_topics, 0.2), n_samples)
    return rng.poisson(100 * shares @ topics).astype(np.float32)


@pytest.mark.parametrize("dict_init", ["samples", "given"])
def test_few_features_are_not_left_out_where_few_matter(dict_init):
    """Masked codes of counts are so noisy that longer runs end higher."""
    X = np.sqrt(sparse_counts())
    if dict_init == "given":
        dict_init = X[:16]
    model = SOMF.nmf(
        16, alpha=0.01, dict_init=dict_init, n_epochs=1, random_state=0, progress=False
    ).fit(X)
    assert 1 <= model.reduction_ < 4
    assert model.trace_["reduction"].max() < 4
    dense = SOMF.nmf(16, alpha=0.01, n_epochs=1, random_state=0, progress=False).fit(
        np.abs(np.random.default_rng(0).standard_normal(X.shape))
    )
    assert dense.reduction_ == 6


def test_sparse_maps_say_nothing_of_the_samples():
    X = np.random.default_rng(0).standard_normal((60, 6000))
    maps = np.zeros((4, 6000))
    maps[np.arange(4), np.arange(4)] = 1
    parameters = {"dict_init": maps, "alpha": 0.1, "n_epochs": 1, "progress": False}
    assert SOMF.sparse_components(4, **parameters).fit(X).reduction_ == 6


def test_the_reduction_of_a_loaded_model_is_that_of_its_data(tmp_path):
    X = np.sqrt(sparse_counts())
    model = SOMF.nmf(16, alpha=0.01, n_epochs=1, random_state=0, progress=False).fit(X)
    model.save(tmp_path / "model.safetensors")
    loaded = SOMF.load(tmp_path / "model.safetensors")
    assert loaded.reduction_ == model.reduction_
