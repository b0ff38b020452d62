"""Maps of simulated brains, found again, in nilearn's words."""

import csv
import json

import nibabel
import numpy as np
import pandas
import pytest
from nilearn.decomposition import DictLearning
from nilearn.maskers import MultiNiftiMasker, NiftiMapsMasker, NiftiMasker
from nilearn.regions import RegionExtractor
from nilearn.surface import SurfaceImage
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from somf import SOMF
from somf.fmri import BrainDictionary, load_bids, simulate
from somf.fmri.records import as_records
from somf.fmri.start import independent_maps


@pytest.fixture(scope="module")
def brains():
    return simulate(n_subjects=4, n_volumes=100, n_maps=12, resolution=6)


def make(brains, n_components=12, **parameters):
    defaults = {
        "mask": brains.mask_img,
        "smoothing_fwhm": None,
        "random_state": 0,
        "n_threads": 1,
    }
    return BrainDictionary(n_components, **(defaults | parameters))


@pytest.fixture(scope="module")
def fitted(brains):
    return make(brains).fit(brains.images)


@pytest.fixture(scope="module")
def quick(brains):
    """A model that is fitted in no time."""
    parameters = {"alpha": 1e-3, "dict_init": "samples", "n_epochs": 1}
    return make(brains, 4, **parameters).fit(brains.images[:2])


def inside(image, brains):
    mask = np.asarray(brains.mask_img.dataobj) > 0
    return np.asarray(image.dataobj)[mask].T


def matched_correlation(found, true):
    """Mean correlation of each true map with the found map that it is paired with."""
    correlation = np.abs(np.corrcoef(found, true)[: len(found), len(found) :])
    rows, columns = linear_sum_assignment(-np.nan_to_num(correlation))
    return correlation[rows, columns].mean()


# -- the maps ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Objective did not converge")  # of the peer
def test_maps_are_found_at_least_as_well_as_by_nilearn(brains, fitted):
    true = inside(brains.maps_img, brains)
    peer = DictLearning(
        12, mask=brains.mask_img, smoothing_fwhm=None, random_state=0
    ).set_params(standardize="zscore_sample")
    theirs = matched_correlation(peer.fit(brains.images).components_, true)
    ours = matched_correlation(fitted.components_, true)
    assert ours > 0.75
    assert ours > theirs


@pytest.mark.parametrize("coverage", [1.0, 3.0])
def test_alpha_gives_the_coverage_that_is_asked_for(brains, coverage):
    model = make(brains, coverage=coverage).fit(brains.images)
    found = np.count_nonzero(model.components_) / model.components_.shape[1]
    assert coverage / 1.4 < found < coverage * 1.4
    assert model.alpha_ == model.model_.alpha


def test_alpha_does_not_depend_on_the_scale_of_the_images(brains):
    found = []
    for scale in (1.0, 1000.0):
        images = [
            nibabel.Nifti1Image(scale * image.get_fdata(dtype=np.float32), image.affine)
            for image in brains.images
        ]
        found.append(make(brains, standardize=None).fit(images).alpha_)
    # Rounding is another one, and trials of alpha end when they are close.
    assert found[0] == pytest.approx(found[1], rel=0.3)


def test_alpha_for_many_voxels_from_a_few(brains, monkeypatch):
    wanted = make(brains).fit(brains.images).alpha_
    monkeypatch.setattr("somf.fmri.start.VOXELS", 2000)  # of 8 000
    assert make(brains).fit(brains.images).alpha_ == pytest.approx(wanted, rel=0.5)


def test_maps_are_of_unit_norm_with_a_positive_tail(fitted):
    np.testing.assert_allclose(np.linalg.norm(fitted.components_, axis=1), 1, rtol=1e-5)
    assert np.all(np.sum(fitted.components_**3, axis=1) > 0)
    negative = np.sum(fitted.model_.components_**3, axis=1) < 0
    assert negative.any()  # some had to be turned
    expected = fitted.model_.components_ * np.where(negative, -1, 1)[:, None]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.components_, expected, rtol=1e-5, atol=1e-8)


def test_maps_that_may_not_be_negative(brains):
    model = make(brains, positive_maps=True, n_epochs=2).fit(brains.images)
    assert model.components_.min() == 0
    assert model.components_.max() > 0


def test_maps_as_an_image(brains, fitted):
    np.testing.assert_array_equal(
        inside(fitted.components_img_, brains), fitted.components_
    )
    assert fitted.mask_img_ is fitted.masker_.mask_img_


def test_the_same_seed_gives_the_same_maps(brains, fitted):
    again = make(brains).fit(brains.images)
    np.testing.assert_array_equal(again.components_, fitted.components_)
    other = make(brains, random_state=1).fit(brains.images)
    assert np.any(other.components_ != fitted.components_)


@pytest.mark.parametrize("start", ["samples", "random", "image", "file"])
def test_other_starts(brains, start, tmp_path):
    true = inside(brains.maps_img, brains)
    nibabel.save(brains.maps_img, tmp_path / "maps.nii.gz")
    images = {"image": brains.maps_img, "file": str(tmp_path / "maps.nii.gz")}
    init = images.get(start, start)
    model = make(brains, alpha=1e-3, dict_init=init, n_epochs=3).fit(brains.images)
    found = matched_correlation(model.components_, true)
    assert found > (0.8 if start in images else 0.2)


def test_a_single_map(brains):
    model = make(brains, 1, n_epochs=2).fit(brains.images[:1])
    assert 0.25 < np.mean(model.components_ != 0) < 0.6  # about half of the voxels


def test_alpha_on_the_scale_of_nilearn_is_told(brains, quick):
    with pytest.warns(UserWarning, match="not on the scale of nilearn"):
        clone(quick).set_params(alpha=10).fit(brains.images[:1])


def test_first_maps_are_sparse_and_near_the_true_ones(brains):
    X = np.concatenate([inside(image, brains) for image in brains.images])
    maps = independent_maps(X, 12, np.random.default_rng(0))
    assert np.count_nonzero(maps) == pytest.approx(X.shape[1], rel=0.01)
    assert matched_correlation(maps, inside(brains.maps_img, brains)) > 0.6


def test_more_maps_than_volumes(brains):
    image = brains.images[0].slicer[..., :6]
    model = make(brains, 10, n_epochs=1).fit(image)
    assert model.components_.shape[0] == 10
    assert np.isfinite(model.components_).all()


def test_the_reduction_leaves_enough_voxels_in_view(quick, brains, monkeypatch):
    assert quick.model_.reduction == 1
    monkeypatch.setattr("somf.fmri.dictionary.IN_VIEW", 2000)
    model = clone(quick).fit(brains.images[:1])
    assert model.model_.reduction == pytest.approx(model.components_.shape[1] / 2000)


# -- what goes in --------------------------------------------------------------------


def test_images_by_list_name_and_pattern(brains, quick, tmp_path):
    paths = [tmp_path / f"run-{i}.nii.gz" for i in range(2)]
    for path, image in zip(paths, brains.images, strict=False):
        nibabel.save(image, path)
    both = clone(quick).fit(paths)
    np.testing.assert_allclose(both.components_, quick.components_, atol=1e-6)
    pattern = clone(quick).fit(str(tmp_path / "run-*.nii.gz"))
    np.testing.assert_array_equal(pattern.components_, both.components_)
    one = clone(quick).fit(paths[0])
    listed = clone(quick).fit([str(paths[0])])
    np.testing.assert_array_equal(one.components_, listed.components_)
    with pytest.raises(FileNotFoundError, match=r"like .*none-\*"):
        clone(quick).fit(str(tmp_path / "none-*.nii.gz"))
    for names in (np.array(paths), pandas.Series(paths), iter(paths)):
        again = clone(quick).fit(names)
        np.testing.assert_array_equal(again.components_, both.components_)
    series = both.transform(str(tmp_path / "run-*.nii.gz"))
    assert [part.shape for part in series] == [(100, 4), (100, 4)]


def test_confounds_change_the_maps(brains, quick):
    rng = np.random.default_rng(0)
    confounds = [rng.standard_normal((100, 30)) for _ in range(2)]
    cleaned = clone(quick).fit(brains.images[:2], confounds=confounds)
    assert np.abs(cleaned.components_ - quick.components_).max() > 1e-3
    one = clone(quick).fit(brains.images[0], confounds=confounds[0])
    listed = clone(quick).fit([brains.images[0]], confounds=[confounds[0]])
    np.testing.assert_array_equal(one.components_, listed.components_)
    clean = one.transform(brains.images[0], confounds=confounds[0])[0]
    assert np.abs(confounds[0].T @ (clean - clean.mean(axis=0))).max() < 0.1
    with pytest.raises(ValueError, match="Number of confounds must match"):
        clone(quick).fit(brains.images, confounds=confounds)


def test_a_script_for_nilearn_with_the_name_changed(brains, tmp_path):
    """The calls of nilearn's examples of decomposition and of region extraction."""
    func_filenames = [str(tmp_path / f"{i}.nii.gz") for i in range(2)]
    for name, image in zip(func_filenames, brains.images, strict=False):
        nibabel.save(image, name)
    dict_learning = BrainDictionary(
        n_components=4,
        memory=str(tmp_path / "nilearn_cache"),
        memory_level=1,
        verbose=1,
        random_state=0,
        n_epochs=1,
        smoothing_fwhm=6.0,
        mask_strategy="whole-brain-template",
        standardize="zscore_sample",
        n_jobs=1,
    )
    dict_learning.fit(func_filenames)
    components_img = dict_learning.components_img_
    components_img.to_filename(tmp_path / "dict_learning_resting_state.nii.gz")
    scores = dict_learning.score(func_filenames, per_component=True)
    assert scores.shape == (4,)
    assert np.all((scores >= 0) & (scores <= 1))
    extractor = RegionExtractor(
        components_img,
        threshold=0.5,
        thresholding_strategy="ratio_n_voxels",
        extractor="local_regions",
        standardize="zscore_sample",
        min_region_size=1350,
    )
    extractor.fit()
    assert extractor.regions_img_.shape[3] == len(extractor.index_)


@pytest.mark.parametrize("kind", [NiftiMasker, MultiNiftiMasker])
def test_a_masker_takes_the_place_of_parameters(brains, quick, kind):
    masker = kind(brains.mask_img, smoothing_fwhm=8, standardize="zscore_sample")
    model = clone(quick).set_params(mask=masker)
    with pytest.warns(UserWarning, match="overriding estimator parameter"):
        model.fit(brains.images[:2])
    assert type(model.masker_) is kind
    assert model.masker_.smoothing_fwhm == 8
    smooth = clone(quick).set_params(smoothing_fwhm=8, detrend=False)
    smooth.fit(brains.images[:2])
    np.testing.assert_allclose(model.components_, smooth.components_, atol=1e-5)


def test_masked_records_are_kept_in_memory(brains, quick, tmp_path, monkeypatch):
    model = clone(quick).set_params(memory=str(tmp_path)).fit(brains.images[:2])
    assert len(list((tmp_path / "somf").glob("*.npy"))) == 2

    def forbidden(*args, **kwargs):
        raise AssertionError("masked again")

    monkeypatch.setattr(MultiNiftiMasker, "transform", forbidden)
    again = clone(model).fit(brains.images[:2])
    np.testing.assert_array_equal(again.components_, model.components_)


def surface_data(n_volumes=30, seed=0):
    from sources.test_nifti import surface_of

    rng = np.random.default_rng(seed)
    return surface_of(rng.standard_normal((n_volumes, 18)).astype(np.float32))


def test_surfaces(tmp_path):
    images = [surface_data(seed=0), surface_data(seed=1)]
    model = BrainDictionary(3, smoothing_fwhm=None, random_state=0, n_threads=1)
    model.fit(images)
    assert isinstance(model.components_img_, SurfaceImage)
    assert model.components_img_.shape == (18, 3)
    assert [series.shape for series in model.transform(images)] == [(30, 3), (30, 3)]
    assert 0 < model.score(images) <= 1
    for name in ("atlas.gii", "other.nii.gz"):
        model.save_atlas(tmp_path / name)
    names = {path.name for path in tmp_path.iterdir()}
    for name in ("atlas", "other"):
        assert {f"{name}.tsv", f"{name}_hemi-L.gii", f"{name}_hemi-R.gii"} <= names
    assert "Atom 0" in model.report().html
    with pytest.raises(ValueError, match="on a surface"):
        model.extract_regions()


# -- BIDS ----------------------------------------------------------------------------

COLUMNS = [
    *(f"{kind}_{axis}" for kind in ("trans", "rot") for axis in "xyz"),
    *("csf", "white_matter", "cosine00"),
]


def write_bids(folder, brains, space="MNI"):
    """Derivatives of two subjects, with what the strategy "simple" needs."""
    rng = np.random.default_rng(0)
    (folder / "dataset_description.json").write_text(
        json.dumps({"Name": "x", "GeneratedBy": [{"Name": "fMRIPrep"}]})
    )
    kinds = ("", "_derivative1", "_power2", "_derivative1_power2")
    columns = [f"{column}{kind}" for column in COLUMNS[:8] for kind in kinds]
    columns.append("cosine00")
    for subject, image in enumerate(brains.images[:2], 1):
        func = folder / f"sub-{subject:02d}" / "func"
        func.mkdir(parents=True, exist_ok=True)
        stem = func / f"sub-{subject:02d}_task-rest"
        nibabel.save(image, f"{stem}_space-{space}_desc-preproc_bold.nii.gz")
        values = rng.standard_normal((image.shape[3], len(columns)))
        with open(f"{stem}_desc-confounds_timeseries.tsv", "w") as file:
            writer = csv.writer(file, delimiter="\t")
            writer.writerow(columns)
            writer.writerows(values)
        (func / f"{stem.name}_desc-confounds_timeseries.json").write_text("{}")


def test_a_pattern_may_reach_into_folders(tmp_path):
    deep = tmp_path / "sub-1" / "func" / "a_bold.nii.gz"
    deep.parent.mkdir(parents=True)
    deep.touch()
    images, confounds = as_records(str(tmp_path / "**" / "*_bold.nii.gz"))
    assert (images, confounds) == ([str(deep)], None)


def test_a_folder_of_derivatives(brains, quick, tmp_path):
    write_bids(tmp_path, brains)
    images, confounds = load_bids(tmp_path)
    assert len(images) == len(confounds) == 2
    by_folder = clone(quick).fit(tmp_path)
    by_list = clone(quick).fit(images, confounds=confounds)
    np.testing.assert_array_equal(by_folder.components_, by_list.components_)
    plain, none = load_bids(tmp_path, strategy=None)
    assert plain == images
    assert none is None
    assert np.abs(by_folder.components_ - quick.components_).max() > 1e-3


def test_a_folder_in_two_spaces(brains, tmp_path):
    write_bids(tmp_path, brains)
    write_bids(tmp_path, brains, space="T1w")
    with pytest.raises(ValueError, match=r"several spaces, \['MNI', 'T1w'\]"):
        load_bids(tmp_path)
    images, _ = load_bids(tmp_path, space="T1w")
    assert len(images) == 2
    with pytest.raises(FileNotFoundError, match=r"no runs .* task-other"):
        load_bids(tmp_path, task="other")
    for path in tmp_path.glob("sub-*/func/*.tsv"):
        path.unlink()
    with pytest.raises(ValueError, match=r"To do without: .*strategy=None"):
        load_bids(tmp_path, space="T1w")


# -- what comes out ------------------------------------------------------------------


def test_time_series_are_those_of_nilearn(brains, fitted):
    series = fitted.transform(brains.images[:2])
    masker = NiftiMapsMasker(fitted.components_img_, brains.mask_img, standardize=None)
    expected = masker.fit().transform(brains.images[0])
    np.testing.assert_allclose(series[0], expected, rtol=1e-4, atol=1e-4)
    images = [fitted.inverse_transform(series)[0], masker.inverse_transform(expected)]
    np.testing.assert_allclose(
        *(inside(image, brains) for image in images), rtol=1e-3, atol=1e-3
    )


def test_score_is_the_variance_that_is_explained(brains, fitted):
    peer = DictLearning(
        12, mask=brains.mask_img, smoothing_fwhm=None, standardize="zscore_sample"
    )
    peer.masker_, peer.components_ = fitted.masker_, fitted.components_
    peer._fit_cache()
    for per_component in (False, True):
        ours = fitted.score(brains.images[0], per_component=per_component)
        theirs = peer.score(brains.images[0], per_component=per_component)
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=1e-4)
    assert fitted.score(brains.images) > 0.1


def test_an_atlas_that_nilearn_reads(brains, fitted, tmp_path):
    path = tmp_path / "atlas.nii.gz"
    fitted.save_atlas(path)
    masker = NiftiMapsMasker(str(path), brains.mask_img, standardize=None)
    series = masker.fit().transform(brains.images[0])
    np.testing.assert_allclose(
        series, fitted.transform(brains.images[0])[0], rtol=1e-3, atol=1e-3
    )
    with open(tmp_path / "atlas.tsv") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [int(row["index"]) for row in rows] == list(range(12))
    assert [int(row["n_voxels"]) for row in rows] == [
        np.count_nonzero(d) for d in fitted.components_
    ]
    peak = nibabel.affines.apply_affine(
        np.linalg.inv(brains.mask_img.affine), [float(rows[3][a]) for a in "xyz"]
    )
    values = np.asarray(fitted.components_img_.dataobj)[..., 3]
    assert values[tuple(np.rint(peak).astype(int))] == np.abs(values).max()
    with pytest.raises(ValueError, match=r"atlas.img must end in .nii.gz"):
        fitted.save_atlas(tmp_path / "atlas.img")


def test_report_with_maps_and_volumes(brains, quick, tmp_path):
    page = quick.report(tmp_path / "report.html", imgs=brains.images[0])
    assert (tmp_path / "report.html").read_text() == page.html
    assert "iframe" in page.html  # the viewer
    assert 'id="examples"' in page.html


def test_regions(fitted):
    regions = fitted.extract_regions(min_region_size=500)
    assert regions.regions_img_.shape[3] >= 12
    assert set(regions.index_) <= set(range(12))


# -- long runs -----------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on(brains, quick, tmp_path, monkeypatch):
    settings = {"batch_size": 20, "checkpoint_minutes": 0, "n_epochs": 3, "tol": 0}
    whole = clone(quick).set_params(**settings).fit(brains.images[:2])
    stopped = clone(quick).set_params(checkpoint=tmp_path / "run", **settings)
    steps = []
    follow = SOMF._fitted_attributes

    def interrupt(self):
        steps.append(self.n_steps_)
        if len(steps) == 2:  # the end of the second epoch
            raise KeyboardInterrupt
        return follow(self)

    monkeypatch.setattr(SOMF, "_fitted_attributes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(brains.images[:2])
    assert not hasattr(stopped, "components_")
    monkeypatch.undo()
    first = SOMF.load(sorted((tmp_path / "run").iterdir())[-1]).n_steps_
    assert 0 < first < whole.model_.n_steps_
    stopped.fit(brains.images[:2], resume=True)
    np.testing.assert_array_equal(stopped.components_, whole.components_)
    with pytest.raises(ValueError, match=r"holds checkpoints .* resume=True"):
        clone(stopped).fit(brains.images[:2])
    for name, value in {"n_components": 5, "alpha": 0.5, "n_epochs": 4}.items():
        other = clone(stopped).set_params(**{name: value})
        with pytest.raises(ValueError, match=f"{name} is .* in the run"):
            other.fit(brains.images[:2], resume=True)
    fresh = clone(quick).set_params(checkpoint=tmp_path / "other", **settings)
    fresh.fit(brains.images[:2], resume=True)  # nothing to resume: from the start
    np.testing.assert_array_equal(fresh.components_, whole.components_)


def test_progress_by_record(brains, quick, capsys, monkeypatch):
    clone(quick).fit(brains.images[:2])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("somf.progress.Lines.EVERY", 0.0)
    clone(quick).set_params(verbose=1).fit(brains.images[:2])
    written = capsys.readouterr().err
    assert "mask: 1 of 2 records (50 %)" in written
    assert "mask: 2 of 2 records (100 %)" in written


# -- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"coverage": 0}, "coverage=0 must be above 0"),
        ({"dict_init": "pca"}, "dict_init='pca' must be one of"),
        ({"alpha": -1}, "alpha=-1 must be a number >= 0"),
        ({"n_epochs": 0}, "n_epochs=0 must be an integer >= 1"),
        ({"reduction": 0.5}, "reduction=0.5 must be a number >= 1"),
    ],
)
def test_wrong_parameters(brains, quick, parameters, message):
    model = clone(quick).set_params(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(brains.images)
    assert not hasattr(model, "masker_")


def test_wrong_images(quick):
    with pytest.raises(ValueError, match="an empty list was given"):
        clone(quick).fit([])
    with pytest.raises(TypeError, match="imgs is a ndarray; it must be an image"):
        clone(quick).fit(np.ones((10, 20)))


def test_images_without_signal(brains):
    image = nibabel.Nifti1Image(
        np.ones((*brains.mask_img.shape, 8), np.float32), brains.mask_img.affine
    )
    with pytest.raises(ValueError, match=r"zero in all of 8 volumes"):
        make(brains, 4, standardize=None).fit(image)


def test_no_sample_is_read_if_nothing_needs_it(brains, quick, monkeypatch):
    monkeypatch.delattr("somf.fmri.dictionary.draw_volumes")
    again = clone(quick).fit(brains.images[:2])
    assert again.components_.shape == quick.components_.shape
    with pytest.raises(NameError):
        clone(quick).set_params(alpha="auto").fit(brains.images[:2])
