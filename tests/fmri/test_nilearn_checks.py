"""nilearn's own checks of estimators, as far as they apply."""

import os

import pytest

pytest.importorskip("nilearn", "0.14", reason="the checks are those of 0.14")
pytest.importorskip("numpydoc", reason="nilearn's checks need numpydoc")
pytest.importorskip("polars", reason="nilearn's checks need polars")

from nilearn._utils.estimator_checks import (
    nilearn_check_estimator,
    return_expected_failed_checks,
)
from sklearn.utils.estimator_checks import parametrize_with_checks

from somf.fmri import BrainDictionary

MODEL = BrainDictionary(4, alpha=1e-2, dict_init="samples", n_epochs=1, n_threads=1)
DO_NOT_APPLY = {
    "check_array_api_input": "input is images, not arrays",
    "check_doc_link": "links to the documentation of nilearn",
    "check_img_estimator_cache_warning": "masked records are kept at any memory_level",
    "check_img_estimator_verbose": "progress goes to the error stream",
    "check_verbosity_embedded_masker": "progress goes to the error stream",
}


# What nilearn expects to fail, and does not here.
PASS = ("check_estimator_sparse_array", "check_estimator_sparse_matrix")
# 56 fits each: only where somebody asks for them.
SLOW = (
    "check_img_estimator_dtypes",
    "check_img_estimator_dtypes_transform",
    "check_img_estimator_dtypes_inverse_transform",
)


def expected_failures(estimator):
    failures = return_expected_failed_checks(estimator) | DO_NOT_APPLY
    return {name: why for name, why in failures.items() if name not in PASS}


@parametrize_with_checks([MODEL], expected_failed_checks=expected_failures)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "check", "name"),
    [c for c in nilearn_check_estimator([MODEL]) if c[2] not in DO_NOT_APPLY],
)
def test_checks_of_nilearn(estimator, check, name):
    if name in SLOW and not os.environ.get("SOMF_SLOW_TESTS"):
        pytest.skip("takes a minute; SOMF_SLOW_TESTS=1 runs it")
    check(estimator)
