"""The projection on the elastic-net ball, by the properties that define it."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from somf.kernels import projection
from somf.problem import AtomConstraint

FLOATS = [np.float32, np.float64]
RATIOS = [0.0, 1e-9, 0.3, 1.0]

# Rounding of the result to its own type: relative, on the norm and on the entries.
SLACK = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-11}

ratios = st.sampled_from([0.0, 1.0, 1e-3, 1e-6, 1e-12]) | st.floats(0.01, 0.99)
radii = st.floats(-9, 3).map(lambda exponent: 10.0**exponent)


def long_vector(seed):
    """Long enough to be searched by a sample of its entries first."""
    rng = np.random.default_rng(seed)
    size = rng.integers(projection.CHUNK, 2 * projection.CHUNK + 500)
    kept = rng.random(size) < rng.choice([0.01, 0.5, 1.0])
    return kept * rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4)


@st.composite
def vectors(draw, dtype=None):
    """Vectors with ties, zeros and entries of very different size."""
    dtype = dtype or draw(st.sampled_from(FLOATS))
    size = draw(st.integers(1, 30))
    if size == 30:
        return long_vector(draw(st.integers(0, 1000))).astype(dtype)
    elements = st.one_of(
        st.floats(-100, 100, width=32, allow_subnormal=False),
        st.sampled_from([0.0, 1.0, -1.0, 3.0, 2.0**-30, -(2.0**30)]),
    )
    return draw(arrays(dtype, size, elements=elements))


def project(u, l1_ratio, radius, positive=False):
    with np.errstate(all="ignore"):  # interpreted kernels warn where they overflow
        return AtomConstraint(l1_ratio, positive).project(u[None], radius)[0]


def norm(d, l1_ratio):
    return reference.enet_norm(d.astype(float), l1_ratio)


def assert_close(ours, theirs, u=0):
    """Equal up to the rounding of `ours`, relative to its largest entry.

    `u` is what the reference has projected: it subtracts a threshold from u, and so it
    is exact to the rounding of u, not of the result.
    """
    assert np.isfinite(ours).all()
    atol = SLACK[ours.dtype] * np.max(np.abs(theirs), initial=0)
    atol += 1e-15 * np.max(np.abs(u), initial=0)
    # Below the smallest normal number a float has no relative precision.
    atol += np.finfo(ours.dtype).tiny
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def assert_closest(u, v, l1_ratio, positive=False):
    """No point z of the unit ball has (u − v)ᵀ(z − v) > 0: v is the projection of u."""
    u, v = u.astype(float), v.astype(float)
    scale = np.max(np.abs(u), initial=0) or 1
    normal = u / scale - v / scale
    z = reference.minimize_linear(-normal, l1_ratio, positive)
    size = np.linalg.norm(normal) * (np.linalg.norm(z) + np.linalg.norm(v))
    assert normal @ (z - v) <= 1e-6 * size


@given(vectors(), ratios, radii, st.booleans())
def test_lands_in_the_ball_and_stays(u, l1_ratio, radius, positive):
    v = project(u, l1_ratio, radius, positive)
    assert v.dtype == u.dtype
    assert norm(v, l1_ratio) <= radius * (1 + SLACK[u.dtype])
    assert not positive or np.all(v >= 0)
    assert_close(project(v, l1_ratio, radius, positive), v)


@given(vectors(np.float64), ratios, st.booleans())
def test_no_point_of_the_ball_is_closer(u, l1_ratio, positive):
    assert_closest(u, project(u, l1_ratio, 1, positive), l1_ratio, positive)


@given(vectors(np.float64), ratios, radii, st.data())
def test_no_drawn_point_of_any_ball_is_closer(u, l1_ratio, radius, data):
    v = project(u, l1_ratio, radius)
    z = data.draw(arrays(float, len(u), elements=st.floats(-100, 100)))
    while norm(z, l1_ratio) > radius:
        z = z / 2
    size = np.linalg.norm(u - v) * (np.linalg.norm(z) + np.linalg.norm(v))
    assert (u - v) @ (z - v) <= 1e-7 * size


@given(vectors(), ratios, st.floats(1e-9, 1e6))
def test_feasible_point_is_untouched(u, l1_ratio, room):
    radius = norm(u, l1_ratio) * (1 + 1e-12) + room
    np.testing.assert_array_equal(project(u, l1_ratio, radius), u)


@given(vectors(), ratios, st.sampled_from([1 - 1e-15, 1.0, 1 + 1e-15]))
def test_point_on_the_boundary_stays(u, l1_ratio, rounding):
    v = project(u, l1_ratio, norm(u, l1_ratio) * rounding)
    assert_close(v, u)
    assert not v[u == 0].any()
    assert np.all(v * np.sign(u) >= 0)


@given(vectors(), ratios, radii)
def test_entries_shrink_and_zeros_stay_zero(u, l1_ratio, radius):
    for v in (u, project(u, l1_ratio, radius)):  # inside the ball or not, on its edge
        w = project(v, l1_ratio, radius)
        assert not w[v == 0].any()
        assert np.all(w * np.sign(v) >= 0)
        assert np.all(np.abs(w) <= np.abs(v) * (1 + SLACK[u.dtype]))


@given(vectors(), ratios, radii)
def test_feasible_nonnegative_point_is_untouched(u, l1_ratio, radius):
    u = project(u, l1_ratio, radius, positive=True)
    radius = 2 * norm(u, l1_ratio) + radius
    np.testing.assert_array_equal(project(u, l1_ratio, radius, positive=True), u)


@given(vectors(), ratios, radii, st.booleans())
def test_equals_the_reference(u, l1_ratio, radius, positive):
    expected = reference.project(u, l1_ratio, radius, positive)
    assert_close(project(u, l1_ratio, radius, positive), expected, u)


@given(vectors(np.float64), ratios, radii)
def test_positivity_is_the_projection_of_the_positive_part(u, l1_ratio, radius):
    np.testing.assert_array_equal(
        project(u, l1_ratio, radius, positive=True),
        project(np.maximum(u, 0), l1_ratio, radius),
    )


@given(vectors(np.float64), ratios, radii)
def test_signs_and_positions_do_not_matter(u, l1_ratio, radius):
    v = project(u, l1_ratio, radius)
    assert_close(-project(-u, l1_ratio, radius), v)
    assert_close(project(u[::-1].copy(), l1_ratio, radius)[::-1], v)


@given(vectors(), ratios)
def test_kernel_of_the_norm(u, l1_ratio):
    measured = projection.enet_norm(u, l1_ratio, 1 - l1_ratio)
    assert measured == pytest.approx(norm(u, l1_ratio), rel=1e-12)


@given(st.lists(vectors(np.float64), min_size=1, max_size=5), ratios, radii)
def test_rows_are_independent(rows, l1_ratio, radius):
    length = max(len(row) for row in rows)
    U = np.array([np.pad(row, (0, length - len(row))) for row in rows])
    before = U.copy()
    together = AtomConstraint(l1_ratio).project(U, radius)
    np.testing.assert_array_equal(U, before)  # the argument is not overwritten
    for u, v in zip(U, together, strict=True):
        np.testing.assert_array_equal(project(u, l1_ratio, radius), v)


@pytest.mark.parametrize("radius", [0.0, -0.0, -1e-300, -1.0])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("l1_ratio", RATIOS)
def test_empty_ball_gives_zero(l1_ratio, dtype, radius):
    for u in (np.array([3, -1, 0]), np.array([1e-30, 0, 0]), np.zeros(3)):
        v = project(u.astype(dtype), l1_ratio, radius)
        np.testing.assert_array_equal(v, np.zeros(3))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("l1_ratio", RATIOS)
@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_ties_share_the_ball(n, l1_ratio, dtype):
    u = np.full(n, 5, dtype)
    u[::2] *= -1
    v = project(u, l1_ratio, 1)
    # Vector lanes and the rest of a loop may round the last bit differently.
    assert np.ptp(np.abs(v)) <= 2 * np.finfo(v.dtype).eps * np.abs(v).max()
    np.testing.assert_array_equal(np.sign(v), np.sign(u))
    assert norm(v, l1_ratio) == pytest.approx(1, rel=SLACK[u.dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("l1_ratio", RATIOS)
def test_zeros_stay_zero(l1_ratio, dtype):
    rng = np.random.default_rng(0)
    u = np.zeros(1000, dtype)
    u[rng.choice(1000, 10, replace=False)] = rng.standard_normal(10) * 5
    v = project(u, l1_ratio, 1)
    assert not v[u == 0].any()
    assert_close(v, reference.project(u, l1_ratio, 1), u)
    np.testing.assert_array_equal(project(np.zeros(5, dtype), l1_ratio, 1), np.zeros(5))


@pytest.mark.parametrize("radius", [1e-12, 1e-6, 1, 1e6])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("l1_ratio", RATIOS)
def test_one_entry(l1_ratio, dtype, radius):
    v = project(np.array([-1e9], dtype), l1_ratio, radius)
    # l1·d + l2/2·d² = radius, in the form of the root that does not cancel
    root = l1_ratio + np.sqrt(l1_ratio**2 + 2 * (1 - l1_ratio) * radius)
    assert_close(v, [-2 * radius / root])


@pytest.mark.parametrize(("dtype", "huge"), [(np.float32, 1e30), (np.float64, 1e300)])
@pytest.mark.parametrize("l1_ratio", RATIOS)
def test_huge_values(l1_ratio, dtype, huge):
    u = np.array([huge, -huge, huge / 2, 0, 1], dtype)
    v = project(u, l1_ratio, 1)
    # So far from the ball, only the direction of u counts; with l1 alone, equal
    # entries share the ball.
    if l1_ratio == 1:
        expected = np.array([1, -1, 0, 0, 0]) / 2
    else:
        expected = reference.minimize_linear(-u.astype(float) / huge, l1_ratio)
    assert_close(v, expected)
    assert_closest(u, v, l1_ratio)


@pytest.mark.parametrize(("dtype", "tiny"), [(np.float32, 1e-30), (np.float64, 1e-300)])
@pytest.mark.parametrize("l1_ratio", RATIOS)
def test_tiny_values(l1_ratio, dtype, tiny):
    u = np.array([4 * tiny, -2 * tiny, 0], dtype)
    np.testing.assert_array_equal(project(u, l1_ratio, 1), u)
    if l1_ratio > 0:  # of squares so small, float64 does not know the sum
        v = project(u, l1_ratio, l1_ratio * 2 * tiny)
        assert_close(v, np.array([2 * tiny, 0, 0], dtype))


@pytest.mark.parametrize("exponent", [-30, -12, -6, 6, 12, 30])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("l1_ratio", RATIOS)
def test_radius_of_another_order_than_the_vector(l1_ratio, dtype, exponent):
    u = np.random.default_rng(0).standard_normal(40).astype(dtype)
    radius = 10.0**exponent
    v = project(u, l1_ratio, radius)
    assert norm(v, l1_ratio) <= radius * (1 + SLACK[u.dtype])
    if exponent > 0:
        np.testing.assert_array_equal(v, u)
    elif l1_ratio == 0:
        assert_close(v, u * (np.sqrt(2 * radius) / np.linalg.norm(u.astype(float))))
    elif l1_ratio >= 0.3 and exponent <= -12:  # only the largest entry is left
        top = np.argmax(np.abs(u))
        expected = np.zeros(40)
        expected[top] = np.sign(u[top]) * radius / l1_ratio
        assert_close(v, expected)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e3, 1e12, 1e200])
def test_pure_l1_scales_with_its_argument(scale):
    u = np.random.default_rng(0).standard_normal(50)
    scaled = project(scale * u, 1.0, scale)
    assert_close(scaled / scale, project(u, 1.0, 1))


@pytest.mark.parametrize("radius", [1e-8, 1e-3, 1, 30])
@pytest.mark.parametrize("l1_ratio", [0.05, 0.5, 1.0])
@pytest.mark.parametrize(
    "u",
    [
        pytest.param(10 * 2.0 ** -np.arange(1000), id="halves"),
        pytest.param(10 * 0.99 ** np.arange(1000), id="slow decay"),
        pytest.param(10 * 2.0 ** -np.repeat(np.arange(50), 20), id="steps of ties"),
        pytest.param(np.repeat([10.0, 1.0], [1, 999]), id="one above ties"),
        pytest.param(np.repeat([10.0, 10 - 1e-9], [500, 500]), id="nearly ties"),
        pytest.param(10 / np.arange(1.0, 1001), id="harmonic"),
        pytest.param(np.linspace(0, 10, 1000), id="ramp"),
        pytest.param(10 - 10.0 ** -np.arange(15), id="crowd below the top"),
    ],
)
def test_active_sets_that_shrink_slowly(u, l1_ratio, radius):
    expected = reference.project(u, l1_ratio, radius)
    v = project(u, l1_ratio, radius)
    assert_close(v, expected, u)
    assert norm(v, l1_ratio) <= radius * (1 + 1e-11)


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_entries_just_above_the_threshold_have_all_their_digits(dtype):
    """What rounding the threshold moves is multiplied by their number."""
    u = np.full(100_000, 0.49001, dtype)
    u[0] = 1
    threshold = 0.49
    radius = np.sum(u.astype(float) - threshold)
    v = project(u, 1.0, radius)
    # The sums themselves are of numbers 100 000 times as large as what is kept.
    assert norm(v, 1.0) == pytest.approx(radius, rel=max(1e-9, SLACK[u.dtype]))
    np.testing.assert_allclose(v, u.astype(float) - threshold, rtol=1e-5)


@pytest.mark.parametrize("l1_ratio", [0.0, 1e-3])
@pytest.mark.parametrize(("dtype", "huge"), [(np.float32, 1e38), (np.float64, 1e300)])
def test_scale_below_the_smallest_number(dtype, huge, l1_ratio):
    u = np.array([1.0, -0.5, 0.25], dtype) * dtype(huge)
    v = project(u, l1_ratio, 1e-9)
    assert norm(v, l1_ratio) == pytest.approx(1e-9, rel=SLACK[u.dtype])
    if l1_ratio == 0:
        np.testing.assert_allclose(v / v[0], [1, -0.5, 0.25], rtol=1e-6)
