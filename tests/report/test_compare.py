"""Several runs on one page."""

import re
from dataclasses import replace

import numpy as np
import pytest

from somf import SOMF
from somf.report import HeatMaps, compare, facts_of, match_atoms


def test_atoms_are_found_again_in_another_order_and_with_other_signs():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((10, 50))
    order, signs = rng.permutation(10), rng.choice([-2.0, 3.0], 10)
    B = (signs[:, None] * A)[order]
    match, cosine = match_atoms(A, B)
    np.testing.assert_array_equal(order[match], np.arange(10))
    np.testing.assert_allclose(cosine, np.sign(signs))


def test_the_matching_is_the_best_as_a_whole():
    """The first atom is nearest to the first, but then the second has none."""
    A = np.array([[1.0, 0.0], [1.0, 0.1]])
    B = np.array([[1.0, 0.05], [1.0, -3.0]])
    cosines = (A / np.linalg.norm(A, axis=1)[:, None]) @ (
        B / np.linalg.norm(B, axis=1)[:, None]
    ).T
    match, found = match_atoms(A, B)
    assert found.sum() == pytest.approx(max(np.trace(cosines), cosines[::-1].trace()))
    assert sorted(match) == [0, 1]


def test_fewer_atoms_leave_some_without_a_match():
    match, cosine = match_atoms(np.eye(4), np.eye(4)[[3, 1]])
    np.testing.assert_array_equal(match, [-1, 1, -1, 0])
    np.testing.assert_array_equal(cosine, [np.nan, 1, np.nan, 1])
    match, _ = match_atoms(np.eye(4)[[3, 1]], np.eye(4))
    np.testing.assert_array_equal(match, [3, 1])


def test_atoms_of_zeros_match_anything():
    _, cosine = match_atoms(np.zeros((2, 3)), np.ones((2, 3)))
    np.testing.assert_array_equal(cosine, 0)


def test_a_run_compared_with_itself_and_with_another(model, X):
    other = SOMF(5, alpha=0.3, n_threads=1, random_state=0, n_epochs=2).fit(X)
    page = compare(
        [
            facts_of(model, name="one"),
            facts_of(model, name="same"),
            facts_of(other, name="less <5>"),
        ],
        [None, HeatMaps(model.components_, shape=(10, 12)), None],
    )
    text = page.html
    assert "same agrees with one by 1.000" in text
    assert "less &lt;5&gt; agrees with one by" in text
    assert "no match" in text  # 8 atoms against 5
    assert "of 5 matched atoms by more than 0.9" in text
    assert "the better run" not in text  # with another alpha
    assert "cannot be compared" in text
    rows = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', text)
    table = {name: re.findall(r"<td>(.*?)</td>", cells) for name, cells in rows}
    assert table["alpha"] == ["0.1", "0.1", "0.3"]
    assert "code_estimator" not in table  # the same in all
    assert text.count('class="spark"') == 8 + 5
    assert text.count('class="pixels"') == 8


def test_runs_on_other_features_are_told_apart(model, X):
    other = SOMF(5, n_threads=1).partial_fit(X[:50, :60])
    text = compare([facts_of(model, name="a"), facts_of(other, name="b")]).html
    assert "b has other features than a: atoms cannot be matched" in text


def test_the_lower_objective_is_better_if_the_problem_is_the_same(model, X):
    facts = facts_of(model)
    assert "the better run" in compare([facts, facts]).html
    for name, value in (("code_l1_ratio", 0.5), ("positive_code", True)):
        other = replace(facts, parameters=facts.parameters | {name: value})
        assert "the better run" not in compare([facts, other]).html
    other = replace(facts, components=facts.components[:, :60])
    assert "the better run" not in compare([facts, other]).html


def test_one_run_is_not_enough(model):
    with pytest.raises(ValueError, match="two or more"):
        compare([facts_of(model)])
