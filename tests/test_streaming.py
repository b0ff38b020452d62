"""The same data give the same bits through any source; only what is used is read."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from chunks import Chunked, Plain, read_all

from somf import SOMF
from somf.choices import choose
from somf.reading import (
    MIX_BYTES,
    cache_bytes,
    make_reader,
    rows_read,
    sample_order,
)
from somf.solver.run import Reader
from somf.sources import PatchSource, SampleSource
from somf.sources.base import (
    COMPLETE,
    ArraySource,
    ObservedBatch,
    Requirements,
    Source,
)

SETTINGS = {
    "n_components": 5,
    "alpha": 0.5,
    "batch_size": 20,
    "n_epochs": 3,
    "tol": 0,
    "random_state": 0,
}


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((100, 5)) * (rng.random((100, 5)) < 0.5)
    return (codes @ rng.standard_normal((5, 120))).astype(np.float32)


def npy(X, folder):
    np.save(folder / "X.npy", X)
    return folder / "X.npy"


def memory_map(X, folder):
    return np.load(npy(X, folder), mmap_mode="r")


def fortran_map(X, folder):
    return memory_map(np.asfortranarray(X), folder)


def several_files(X, folder):
    paths = [folder / f"{i}.npy" for i in range(3)]
    for path, part in zip(paths, np.split(X, [30, 31]), strict=True):
        np.save(path, part)
    return paths


def sparse(X, folder):
    return scipy.sparse.csr_array(X)


def sparse_file(X, folder):
    scipy.sparse.save_npz(folder / "X.npz", scipy.sparse.csr_matrix(X))
    return folder / "X.npz"


def hdf5(X, folder):
    h5py = pytest.importorskip("h5py", reason="the extra `chunked`")
    with h5py.File(folder / "X.h5", "w") as file:
        file["X"] = X
    return str(folder / "X.h5")


def hdf5_dataset(X, folder):
    h5py = pytest.importorskip("h5py", reason="the extra `chunked`")
    return h5py.File(hdf5(X, folder))["X"]


def plain(X, folder):
    source = Plain(X)
    assert isinstance(source, SampleSource)
    return source


BY_ROWS = [
    npy,
    memory_map,
    fortran_map,
    several_files,
    sparse,
    sparse_file,
    hdf5,
    hdf5_dataset,
    plain,
]


@pytest.mark.parametrize("make", BY_ROWS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"reduction": 3},
        {"reduction": 1},
        {"reduction": 3, "aggregation": "masked", "code_estimator": "gram"},
    ],
    ids=str,
)
def test_same_bits(make, parameters, X, tmp_path):
    settings = SETTINGS | parameters
    expected = SOMF(**settings).fit(X, X_val=X[:30])
    (tmp_path / "val").mkdir()
    data, held_out = make(X, tmp_path), make(X[:30], tmp_path / "val")
    model = SOMF(**settings).fit(data, X_val=held_out)
    np.testing.assert_array_equal(model.components_, expected.components_)
    assert model.objective_ == expected.objective_
    np.testing.assert_array_equal(model.transform(data), expected.transform(X))
    assert model.score(data) == expected.score(X)
    parts = list(model.iter_transform(data))
    np.testing.assert_array_equal(np.concatenate(parts), expected.transform(X))


def zarr_array(X, folder, chunks):
    zarr = pytest.importorskip("zarr", reason="the extra `chunked`")
    path = str(folder / "X.zarr")
    array = zarr.open(path, mode="w", shape=X.shape, chunks=chunks, dtype=X.dtype)
    array[:] = X
    return path


def dask_array(X, folder, chunks):
    dask = pytest.importorskip("dask.array", reason="the extra `dask`")
    return dask.from_array(X, chunks)


def hdf5_chunks(X, folder, chunks):
    h5py = pytest.importorskip("h5py", reason="the extra `chunked`")
    with h5py.File(folder / "X.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=chunks)
    return folder / "X.h5"


def in_chunks(X, folder, chunks):
    return Chunked(X, *chunks)


BY_CHUNKS = [zarr_array, dask_array, hdf5_chunks]


@pytest.mark.parametrize("make", BY_CHUNKS)
@pytest.mark.parametrize("chunks", [(10, 16), (7, 120), (64, 50)], ids=str)
@pytest.mark.parametrize(
    "parameters",
    [{"reduction": 3}, {"reduction": 3, "aggregation": "masked"}],
    ids=str,
)
def test_chunked_sources_agree(make, chunks, parameters, X, tmp_path):
    settings = SETTINGS | parameters
    expected = SOMF(**settings).fit(in_chunks(X, None, chunks))
    data = make(X, tmp_path, chunks)
    model = SOMF(**settings).fit(data)
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.transform(data), model.transform(X))


def test_without_shuffling_chunks_change_nothing(X):
    settings = SETTINGS | {"shuffle": False, "reduction": 3}
    expected = SOMF(**settings).fit(X)
    model = SOMF(**settings).fit(Chunked(X, 7, 16))
    np.testing.assert_array_equal(model.components_, expected.components_)


def read_numbers(source):
    return sum(len(rows) * len(features) for rows, features in source.log)


def test_every_chunk_is_read_once_in_an_epoch(X):
    source = Chunked(X, 8, 16)
    SOMF(**(SETTINGS | {"dict_init": "random"})).fit(source)
    assert read_numbers(source) == X.size  # all of it is kept: it is small
    assert SETTINGS["n_epochs"] > 1


def test_observed_features_alone_are_read(X, monkeypatch):
    settings = SETTINGS | {"dict_init": "random", "aggregation": "masked"}
    source = Chunked(X, 20, 10)
    model = SOMF(**settings, reduction=4).fit(source)
    assert model.state_.sampler.masks.block == 10
    assert read_numbers(source) == X.size * SETTINGS["n_epochs"] / 4
    for rows, features in source.log:
        assert len(rows) == 20
        np.testing.assert_array_equal(rows // 20, rows[0] // 20)  # a whole chunk
        assert len(np.unique(features // 10)) == len(features) / 10  # whole chunks
    monkeypatch.setattr(Reader, "read", read_all)
    expected = SOMF(**settings, reduction=4).fit(Chunked(X, 20, 10))
    np.testing.assert_array_equal(model.components_, expected.components_)


@pytest.mark.parametrize(
    "parameters",
    [
        {"aggregation": "full"},
        {"aggregation": "masked", "code_estimator": "exact"},
        {"aggregation": "masked", "reduction": 1},
    ],
    ids=str,
)
def test_all_features_are_read_where_they_are_needed(parameters, X):
    source = Chunked(X, 20, 10)
    settings = SETTINGS | {"reduction": 4} | parameters
    expected = SOMF(**settings).fit(Chunked(X, 20, None))
    model = SOMF(**settings).fit(source)
    assert all(len(features) == 120 for _, features in source.log)
    np.testing.assert_array_equal(model.components_, expected.components_)


def test_dead_atoms_are_replaced_although_only_a_part_is_read(X, monkeypatch):
    settings = SETTINGS | {"aggregation": "masked", "reduction": 4, "n_epochs": 8}
    settings |= {"alpha": 30.0, "dict_init": "random"}
    source = Chunked(X, 20, 10)
    model = SOMF(**settings).fit(source)
    assert model.trace_["replaced_atoms"][-1] > 0
    assert any(len(features) == 120 for _, features in source.log)
    monkeypatch.setattr(Reader, "read", read_all)
    expected = SOMF(**settings).fit(Chunked(X, 20, 10))
    np.testing.assert_array_equal(model.components_, expected.components_)


@pytest.mark.parametrize("make", [memory_map, plain, sparse])
def test_reading_ahead_is_not_seen_in_the_bits(make, X, tmp_path, monkeypatch):
    data = make(X, tmp_path)
    one = SOMF(**SETTINGS).fit(data)
    monkeypatch.setattr("somf.solver.run.DEPTH", 0)
    two = SOMF(**SETTINGS).fit(data)
    np.testing.assert_array_equal(one.components_, two.components_)


class Failing(Plain):
    """Cannot be read any more after a while."""

    def __init__(self, X, n_reads):
        super().__init__(X)
        self.n_left = n_reads

    def read(self, rows):
        self.n_left -= 1
        if self.n_left < 0:
            raise OSError("the disk is gone")
        return super().read(rows)


def test_a_chunk_that_fails_to_read_keeps_the_last_checkpoint(X, tmp_path):
    settings = SETTINGS | {"dict_init": "random"}
    model = SOMF(**settings, checkpoint=tmp_path, checkpoint_steps=1)
    with pytest.raises(OSError, match="the disk is gone"):
        model.fit(Failing(X, 7))
    resumed = SOMF.resume(tmp_path, X)
    expected = SOMF(**settings).fit(X)
    np.testing.assert_array_equal(resumed.components_, expected.components_)
    assert resumed.n_steps_ == expected.n_steps_


@pytest.mark.parametrize("make", [npy, plain, sparse, several_files])
def test_bad_values_are_found_when_they_are_read(make, X, tmp_path):
    X[42, 7] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SOMF(**SETTINGS).fit(make(X, tmp_path))


@pytest.mark.parametrize("make", [npy, plain, sparse, several_files])
def test_partial_fit_takes_sources_too(make, X, tmp_path):
    expected, model = SOMF(**SETTINGS), SOMF(**SETTINGS)
    for i in range(0, 100, 50):
        (tmp_path / str(i)).mkdir()
        expected.partial_fit(X[i : i + 50])
        model.partial_fit(make(X[i : i + 50], tmp_path / str(i)))
    np.testing.assert_array_equal(model.components_, expected.components_)
    before = pickle.dumps(vars(model))
    X[42, 7] = np.nan
    (tmp_path / "bad").mkdir()
    bad = make(X, tmp_path / "bad")
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(bad)
    assert pickle.dumps(vars(model)) == before
    fresh = SOMF(**SETTINGS)
    with pytest.raises(ValueError, match="NaN"):
        fresh.partial_fit(bad)
    assert not hasattr(fresh, "state_")


def test_samples_are_checked_once(X, monkeypatch):
    looked_at = []
    check = Requirements.check

    def note(wanted, X, rows):
        if not wanted.known:
            looked_at.extend(rows.tolist())
        check(wanted, X, rows)

    monkeypatch.setattr(Requirements, "check", note)
    SOMF(**(SETTINGS | {"dict_init": "random"})).fit(Plain(X))
    assert SETTINGS["n_epochs"] > 1
    assert sorted(looked_at) == list(range(100))


@pytest.mark.parametrize("make", [npy, plain, sparse])
def test_nmf_refuses_negative_samples_of_sources(make, X, tmp_path):
    X = np.abs(X)
    X[42, 7] = -1
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        SOMF.nmf(**SETTINGS).fit(make(X, tmp_path))


def test_patches_are_a_source(X):
    patches = PatchSource(X[:20, :20], (4, 4))
    model = SOMF(**SETTINGS).fit(patches)
    expected = SOMF(**SETTINGS).fit(patches.read(np.arange(patches.shape[0])))
    np.testing.assert_array_equal(model.components_, expected.components_)


class Shuffled(Plain):
    """Columns in another order, as `somf convert` can store them."""

    row_chunks = feature_chunk = None
    in_memory = False

    def __init__(self, X, order):
        super().__init__(np.ascontiguousarray(X[:, order]))
        self.feature_order = order


def test_shuffled_features_come_back_in_order(X):
    order = np.random.default_rng(1).permutation(120)
    shuffled = Shuffled(X, order)
    settings = SETTINGS | {"dict_init": X[:5], "reduction": 1}
    model = SOMF(**settings).fit(shuffled, X_val=X[:30])
    expected = SOMF(**settings).fit(X, X_val=X[:30])
    close = {"rtol": 1e-3, "atol": 1e-3}  # sums in another order
    np.testing.assert_allclose(model.components_, expected.components_, **close)
    np.testing.assert_allclose(model.objective_, expected.objective_, rtol=1e-5)
    for data in (X, shuffled):
        codes = model.transform(data)
        np.testing.assert_allclose(codes, expected.transform(X), **close)
        rebuilt = model.inverse_transform(codes)
        again = expected.inverse_transform(expected.transform(X))
        np.testing.assert_allclose(rebuilt, again, **close)
    np.testing.assert_allclose(expected.score(shuffled), expected.score(X), rtol=1e-5)
    model.partial_fit(X[:20])
    expected.partial_fit(X[:20])
    np.testing.assert_allclose(model.components_, expected.components_, **close)


class Voxels(Plain):
    """As many features as others, but not the same."""

    def __init__(self, X, key):
        super().__init__(X)
        self.feature_key = key


def test_voxels_of_another_mask_are_refused(X, tmp_path):
    model = SOMF(**SETTINGS).fit(Voxels(X, "one mask"))
    model.save(tmp_path / "model")
    for known in (model, SOMF.load(tmp_path / "model")):
        known.transform(Voxels(X, "one mask"))
        known.transform(X)  # nothing is known of an array
        with pytest.raises(ValueError, match="voxels of another mask"):
            known.transform(Voxels(X, "another mask"))
    with pytest.raises(ValueError, match="voxels of another mask"):
        SOMF(**SETTINGS).fit(Voxels(X, "one mask"), X_val=Voxels(X, "another mask"))
    model.fit(Voxels(X, "another mask")).transform(Voxels(X, "another mask"))
    model.fit(Plain(X)).transform(Voxels(X, "one mask"))


def test_shuffled_features_survive_a_file(X, tmp_path):
    order = np.random.default_rng(1).permutation(120)
    model = SOMF(**SETTINGS).fit(Shuffled(X, order))
    model.save(tmp_path / "model")
    loaded = SOMF.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.components_, model.components_)
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))


class Sized(Source):
    """A source of any size that is never read."""

    def __init__(self, shape, row_chunk=None, feature_chunk=None):
        self.shape, self.dtype = shape, np.dtype(np.float32)
        self.feature_chunk = feature_chunk
        if row_chunk:
            bounds = np.arange(0, shape[0], row_chunk)
            self.row_chunks = np.append(bounds, shape[0])


def choices_for(source, **parameters):
    return choose(SOMF(**parameters).get_params(), source)


def test_memory_of_mixed_chunks_is_bounded():
    source = Sized((10**6, 10_000), row_chunk=100)
    choices = choices_for(source, n_components=20)
    order = sample_order(source, choices, True)
    row_bytes = 40_000
    assert order.mix == MIX_BYTES // row_bytes
    kept = cache_bytes(source, order.mix)
    assert kept <= 2 * MIX_BYTES + 200 * row_bytes
    reader = make_reader(source, choices, order, COMPLETE)
    assert reader.source.capacity_bytes == kept


def test_chunks_that_do_not_fit_in_memory_are_told_of(caplog, monkeypatch):
    source = Sized((1000, 10_000), row_chunk=1000)
    choices = choices_for(source, n_components=20)
    order = sample_order(source, choices, True)
    make_reader(source, choices, order, COMPLETE)
    assert caplog.text == ""
    monkeypatch.setattr("somf.reading.available_memory", lambda: 10**7)
    make_reader(source, choices, order, COMPLETE)
    assert "Chunks of 1000 rows" in caplog.text
    assert "somf convert" in caplog.text


def test_few_samples_are_kept_whole():
    source = Sized((1000, 100), row_chunk=10)
    assert cache_bytes(source, mix=10**9) == 1000 * 100 * 4


def test_chunks_are_kept_together_where_a_part_is_read():
    source = Sized((10**6, 10_000), 64, 512)
    choices = choices_for(source, n_components=20, aggregation="masked")
    assert choices.reads_observed
    assert choices.mask_block == 512
    assert sample_order(source, choices, True).mix == 0
    assert not choices_for(source, n_components=20).reads_observed
    assert choices_for(source, n_components=20).mask_block == 1


def test_an_array_is_not_read_ahead(X):
    source = ArraySource(X)
    choices = choices_for(source, n_components=5)
    order = sample_order(source, choices, True)
    assert make_reader(source, choices, order, COMPLETE).depth == 0
    assert order.chunks is None


class Gone(Plain):
    """Cannot be read at all."""

    def read(self, rows):
        raise OSError("the disk is gone")


def test_a_fit_that_fails_at_once_leaves_the_model_as_it_was(X, tmp_path):
    model = SOMF(**SETTINGS).fit(X)
    codes, n_features = model.transform(X), model.n_features_in_
    wider = np.concatenate([X, X], axis=1)
    with pytest.raises(OSError, match="the disk is gone"):
        model.fit(Gone(wider))
    with pytest.raises(ValueError, match="overflow"):
        model.fit(np.full_like(wider, 1e30))
    assert model.n_features_in_ == n_features
    np.testing.assert_array_equal(model.transform(X), codes)
    fresh = SOMF(**SETTINGS)
    with pytest.raises(ValueError, match="overflow"):
        fresh.partial_fit(np.full_like(X, 1e30))
    assert not hasattr(fresh, "state_")


def test_a_fit_that_fails_later_leaves_a_model_of_the_new_data(X):
    model = SOMF(**SETTINGS).fit(X)
    wider = np.concatenate([X, X], axis=1)
    with pytest.raises(OSError, match="the disk is gone"):
        model.fit(Failing(wider, 4))
    assert model.n_features_in_ == model.components_.shape[1] == 240
    assert model.transform(wider).shape == (100, 5)


@pytest.mark.parametrize("init", ["samples", "random"])
def test_infinity_is_found_where_only_a_part_is_read(init, X):
    X[:, 77] = np.inf  # in every first atom, and in every sample for a new one
    settings = SETTINGS | {"aggregation": "masked", "reduction": 12, "dict_init": init}
    with pytest.raises(ValueError, match="infinity"):
        SOMF(**settings).fit(Chunked(X, 20, 10))


def test_a_sample_may_replace_two_atoms(X):
    source = Chunked(X, 20, 10)
    batch = ObservedBatch(X[:5], np.array([4, 8, 15, 16, 23]), source, COMPLETE)
    copied = batch.copy_rows(np.array([3, 0, 3, 1]))
    np.testing.assert_array_equal(copied, X[[16, 4, 16, 8]])
    np.testing.assert_array_equal(source.log[0][0], [4, 8, 16])


@pytest.mark.parametrize(
    ("row_chunk", "batch_size", "n_samples"),
    [(64, "auto", 256), (300, "auto", 300), (64, 50, 50), (1, "auto", 200)],
)
def test_batches_are_whole_chunks_for_partial_reads(row_chunk, batch_size, n_samples):
    source = Sized((10**5, 10_000), row_chunk, 512)
    settings = {"code_l1_ratio": 0.0, "aggregation": "masked", "batch_size": batch_size}
    assert choices_for(source, n_components=20, **settings).batch_size == n_samples
    del settings["aggregation"]
    usual = 200 if batch_size == "auto" else batch_size
    assert choices_for(source, n_components=20, **settings).batch_size == usual


@pytest.mark.parametrize(
    ("feature_chunk", "mask_block", "part"),
    [
        (500, "auto", True),
        (500, 1000, True),
        (500, 1, False),
        (500, 750, False),
        (833, "auto", True),
        (5000, "auto", False),  # 2 chunks cannot make a twelfth
    ],
)
def test_only_whole_chunks_of_features_are_read(feature_chunk, mask_block, part):
    source = Sized((10**5, 10_000), 64, feature_chunk)
    settings = {"aggregation": "masked", "reduction": 12, "mask_block": mask_block}
    assert choices_for(source, n_components=20, **settings).reads_observed == part


def test_chunks_that_are_read_again_and_again_are_told_of(caplog):
    source = Sized((1000, 10_000), 100, 500)
    for batch_size, told in ((100, False), (20, True)):
        choices = choices_for(
            source, n_components=5, aggregation="masked", batch_size=batch_size
        )
        order = sample_order(source, choices, True)
        make_reader(source, choices, order, COMPLETE)
        assert ("5.0 times too much" in caplog.text) == told
        assert rows_read(source, choices, order.n_batches) == (5000 if told else 1000)


def test_transform_and_score_read_every_chunk_once(X, monkeypatch):
    monkeypatch.setattr("somf.solver.evaluation.CHUNK", 15)
    model = SOMF(**SETTINGS).fit(X)
    for method in (model.transform, model.score):
        source = Chunked(X, 40, None)
        method(source)
        assert read_numbers(source) == X.size
    np.testing.assert_array_equal(model.transform(source), model.transform(X))


def test_drawing_a_mask_is_timed(X):
    model = SOMF(**(SETTINGS | {"reduction": 4}))
    for rows in np.split(np.arange(100), 5):
        model.partial_fit(X[rows])
    assert np.all(model.trace_["seconds_mask"] > 0)
    assert np.all(model.fit(X).trace_["seconds_mask"] > 0)
