r"""Slow float64 transcription of Algorithms 1, 3 and 4 of the paper: the oracle.

Letters are the paper's, except that a sample is a row of X (n_samples, n_features).
D and B are (p, k), C and G are (k, k). An elastic-net ratio is ``l1_ratio``: 1 - mu
for the atoms, 1 - nu for the codes. ``alpha`` is the paper's lambda.

A run is a list of draws ``(rows, features, orders)``: the samples of the batch, the
distinct features that the mask observes, and one permutation of the atoms for each
pass of block coordinate descent (the paper makes one pass).
"""

from types import SimpleNamespace

import numpy as np


def enet_norm(d, l1_ratio):
    """||d|| = l1_ratio |d|_1 + (1 - l1_ratio) / 2 |d|_2^2."""
    return l1_ratio * np.sum(np.abs(d)) + (1 - l1_ratio) / 2 * np.sum(d**2)


def soft_threshold(u, threshold):
    """S(u, s) = sign(u) max(|u| - s, 0)."""
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


def smallest_multiplier(is_feasible):
    """Smallest double tau > 0 with is_feasible(tau), monotone in tau, by bisection."""
    low, high = 0.0, 1.0
    while not is_feasible(high):
        low, high = high, 2 * high
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        if is_feasible(middle):
            high = middle
        else:
            low = middle


def project(u, l1_ratio, radius, positive=False):
    """argmin_d |d - u|_2^2 subject to ||d|| <= radius (and d >= 0).

    d = S(u, tau l1) / (1 + tau l2) with the smallest feasible tau >= 0, where
    l1 = l1_ratio and l2 = 1 - l1_ratio. With positivity u is replaced by max(u, 0).
    """
    u = np.array(u, dtype=float)
    if positive:
        u = np.maximum(u, 0)
    if radius <= 0:
        return np.zeros_like(u)
    if enet_norm(u, l1_ratio) <= radius:
        return u

    def shrink(tau):
        return soft_threshold(u, tau * l1_ratio) / (1 + tau * (1 - l1_ratio))

    tau = smallest_multiplier(lambda tau: enet_norm(shrink(tau), l1_ratio) <= radius)
    return shrink(tau)


def solve_code(G, beta, alpha, l1_ratio, positive=False):
    """argmin_a 1/2 a^T G a - beta^T a + alpha Omega(a) (and a >= 0).

    Omega(a) = l1_ratio |a|_1 + (1 - l1_ratio) / 2 |a|_2^2. A coordinate with
    G[j, j] = 0 (no atom there) has a[j] = 0, whatever beta[j].
    """
    code = np.zeros(len(beta))
    live = np.flatnonzero(np.diag(G) > 0)
    l1 = alpha * l1_ratio
    H = G[np.ix_(live, live)] + alpha * (1 - l1_ratio) * np.eye(len(live))
    b = beta[live]
    if l1 == 0 and not positive:
        code[live] = np.linalg.solve(H, b)
        return code

    a = np.zeros(len(live))
    for _ in range(100_000):
        largest_change = 0.0
        for j in range(len(live)):
            v = b[j] - H[j] @ a + H[j, j] * a[j]
            shrunk = max(v - l1, 0) + (0 if positive else min(v + l1, 0))
            new = shrunk / H[j, j]
            largest_change = max(largest_change, abs(new - a[j]))
            a[j] = new
        if largest_change <= 1e-15 * np.max(np.abs(a), initial=0):
            break

    # On the support the minimiser is linear in b: this removes what is left of the
    # error of the descent, which may be far larger than its last change.
    support = np.flatnonzero(a)
    H_support = H[np.ix_(support, support)]
    if len(support) and np.linalg.matrix_rank(H_support) == len(support):
        signs = np.sign(a[support])
        polished = np.linalg.solve(H_support, b[support] - l1 * signs)
        if np.array_equal(np.sign(polished), signs):
            a[support] = polished
    code[live] = a
    return code


def objective(X, D, codes, alpha, l1_ratio):
    """Mean over the samples of 1/2 |x - D a|_2^2 + alpha Omega(a)."""
    total = 0.0
    for x, a in zip(X, codes, strict=True):
        total += np.sum((x - D @ a) ** 2) / 2 + alpha * enet_norm(a, l1_ratio)
    return total / len(X)


def partial_dictionary_update(D, B, C, norms, G, features, orders, l1_ratio, positive):
    """Alg. 4. P selects the rows ``features``; for each atom j of each order:

    r_j = max(0, 1 - ||d_j|| + ||P d_j||)
    u = P d_j + (P b_j - P D c_j) / C[j, j]
    P d_j <- projection of u on the ball of radius r_j

    ``norms`` holds the ||d_j|| over all rows (the paper carries 1 - ||d_j||), and
    G <- G - D_{t-1}^T P^T P D_{t-1} + D_t^T P^T P D_t. Atoms with C[j, j] = 0 are
    skipped. Returns the new D, norms and G.
    """
    D, norms = np.array(D, dtype=float), np.array(norms, dtype=float)
    old = D[features]
    for order in orders:
        for j in order:
            if C[j, j] == 0:
                continue
            observed_norm = enet_norm(D[features, j], l1_ratio)
            radius = max(0, 1 - norms[j] + observed_norm)
            gradient = D[features] @ C[:, j] - B[features, j]
            u = D[features, j] - gradient / C[j, j]
            D[features, j] = project(u, l1_ratio, radius, positive)
            norms[j] += enet_norm(D[features, j], l1_ratio) - observed_norm
    new = D[features]
    return D, norms, G - old.T @ old + new.T @ new


def omf(
    X,
    D0,
    draws,
    *,
    alpha,
    code_l1_ratio,
    dict_l1_ratio,
    positive_code,
    positive_dict,
    weight,
):
    """Alg. 1 with mini-batches; the features of the draws are ignored.

    a_i = argmin 1/2 |x_i - D a|_2^2 + alpha Omega(a) for the samples i of the batch
    C <- (1 - w_t) C + w_t mean_i a_i a_i^T
    B <- (1 - w_t) B + w_t mean_i x_i a_i^T
    d_j <- projection of d_j + (b_j - D c_j) / C[j, j] on the unit ball, in order
    """
    D = np.array(D0, dtype=float)
    p, k = D.shape
    B, C = np.zeros((p, k)), np.zeros((k, k))
    all_codes = []
    for t, (rows, _, orders) in enumerate(draws, start=1):
        codes = np.zeros((len(rows), k))
        for n, i in enumerate(rows):
            codes[n] = solve_code(
                D.T @ D, D.T @ X[i], alpha, code_l1_ratio, positive_code
            )
        all_codes.append(codes)

        w = weight(t)
        C = (1 - w) * C + w * codes.T @ codes / len(rows)
        B = (1 - w) * B + w * X[rows].T @ codes / len(rows)

        for order in orders:
            for j in order:
                if C[j, j] > 0:
                    u = D[:, j] + (B[:, j] - D @ C[:, j]) / C[j, j]
                    D[:, j] = project(u, dict_l1_ratio, 1, positive_dict)
    norms = np.array([enet_norm(d, dict_l1_ratio) for d in D.T])
    return SimpleNamespace(D=D, B=B, C=C, G=D.T @ D, norms=norms, codes=all_codes)


def somf(
    X,
    D0,
    draws,
    *,
    alpha,
    code_l1_ratio,
    dict_l1_ratio,
    positive_code,
    positive_dict,
    weight,
    sample_weight,
    estimator,
    aggregation,
    dict_update="observed",
):
    """Alg. 3 with mini-batches. M is p / len(features) on the diagonal at features.

    For each sample i of the batch: c_i <- c_i + 1, gamma = gamma_{c_i}, and
    beta_i <- (1 - gamma) beta_i + gamma D^T M x_i
    G_i <- (1 - gamma) G_i + gamma D^T M D
    a_i = argmin 1/2 a^T G a - a^T beta + alpha Omega(a), where G and beta are
    - "masked" (a): D^T M D and D^T M x_i
    - "averaged" (b): G_i and beta_i
    - "gram" (c): D^T D and beta_i
    - "exact": D^T D and D^T x_i.
    Deviation from the paper: a mask that observes every feature sets gamma = 1.

    C <- (1 - w_t) C + w_t mean_i a_i a_i^T, and B likewise with x_i a_i^T:
    - "full", "async": all the rows of B, with w_t
    - "masked": the observed rows f only, with w_f = 1 - prod_s (1 - w_s) over the
      iterations s after the last visit of f up to the present one; 1 if no visit.
    Then Alg. 4 on the observed features, or on "all" of them.
    """
    D = np.array(D0, dtype=float)
    (n_samples, p), k = X.shape, D.shape[1]
    B, C = np.zeros((p, k)), np.zeros((k, k))
    G = D.T @ D
    norms = np.array([enet_norm(d, dict_l1_ratio) for d in D.T])
    counts = np.zeros(n_samples, dtype=int)
    beta_averages = np.zeros((n_samples, k))
    G_averages = np.zeros((n_samples, k, k))
    # prod_s (1 - w_s) since the last visit of each row; 0 makes a first visit w_f = 1.
    kept = np.zeros(p)
    all_codes = []
    for t, (rows, features, orders) in enumerate(draws, start=1):
        M = np.zeros((p, p))
        M[features, features] = p / len(features)
        DtM, DtMD, DtD = D.T @ M, D.T @ M @ D, D.T @ D

        codes = np.zeros((len(rows), k))
        for n, i in enumerate(rows):
            x = X[i]
            counts[i] += 1
            gamma = 1 if len(features) == p else sample_weight(counts[i])
            beta_averages[i] = (1 - gamma) * beta_averages[i] + gamma * DtM @ x
            G_averages[i] = (1 - gamma) * G_averages[i] + gamma * DtMD
            G_code, beta = {
                "masked": (DtMD, DtM @ x),
                "averaged": (G_averages[i], beta_averages[i]),
                "gram": (DtD, beta_averages[i]),
                "exact": (DtD, D.T @ x),
            }[estimator]
            codes[n] = solve_code(G_code, beta, alpha, code_l1_ratio, positive_code)
        all_codes.append(codes)

        w = weight(t)
        C = (1 - w) * C + w * codes.T @ codes / len(rows)
        B_batch = X[rows].T @ codes / len(rows)
        kept *= 1 - w
        if aggregation == "masked":
            for f in features:
                B[f] = kept[f] * B[f] + (1 - kept[f]) * B_batch[f]
                kept[f] = 1
        elif aggregation in ("full", "async"):
            B = (1 - w) * B + w * B_batch
        else:
            raise ValueError(aggregation)

        updated = np.arange(p) if dict_update == "all" else features
        D, norms, G = partial_dictionary_update(
            D, B, C, norms, G, updated, orders, dict_l1_ratio, positive_dict
        )
    return SimpleNamespace(D=D, B=B, C=C, G=G, norms=norms, codes=all_codes)


def minimize_linear(g, l1_ratio, positive=False):
    """argmin_d <g, d> subject to ||d|| <= 1 (and d >= 0).

    d = -S(g, tau l1) / (tau l2) with ||d|| = 1. Pure l1: -sign(g_i) at one largest
    |g_i|; pure l2: -sqrt(2) g / |g|_2. With positivity g is replaced by min(g, 0).
    """
    if positive:
        g = np.minimum(g, 0)
    d = np.zeros(len(g))
    if not np.any(g):
        return d
    if l1_ratio == 1:
        i = np.argmax(np.abs(g))
        d[i] = -np.sign(g[i])
        return d
    if l1_ratio == 0:
        return -np.sqrt(2) * g / np.linalg.norm(g)

    def atom(tau):
        return -soft_threshold(g, tau * l1_ratio) / (tau * (1 - l1_ratio))

    return atom(smallest_multiplier(lambda tau: enet_norm(atom(tau), l1_ratio) <= 1))


def directional_derivative(
    X, D, alpha, code_l1_ratio, dict_l1_ratio, positive_code, positive_dict
):
    """min over D' in the constraint set of <grad f(D), D' - D>, for a feasible D.

    f is the empirical risk, grad f(D) = mean_i -(x_i - D a_i) a_i^T with exact codes
    a_i. The value is <= 0, and 0 if and only if D is stationary.
    """
    gradient = np.zeros(D.shape)
    for x in X:
        a = solve_code(D.T @ D, D.T @ x, alpha, code_l1_ratio, positive_code)
        gradient -= np.outer(x - D @ a, a) / len(X)
    total = 0.0
    for g, d in zip(gradient.T, D.T, strict=True):
        total += g @ (minimize_linear(g, dict_l1_ratio, positive_dict) - d)
    return total
