"""A fitted model and its data for all tests of reports."""

import pytest
from reported import SETTINGS, make_samples

from somf import SOMF


@pytest.fixture(scope="session")
def X():
    return make_samples()


@pytest.fixture(scope="session")
def model(X):
    return SOMF(**SETTINGS, reduction=2, n_epochs=15, tol=0).fit(X[:250], X_val=X[250:])
