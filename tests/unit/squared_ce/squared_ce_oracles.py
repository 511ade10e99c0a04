"""The equations written down in NumPy, without any of the library's ways of making them fast."""

import math

import numpy as np

from jaxcal import calibration_error

TRAIN = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]])
TRAIN_LABELS = np.array([0, 2, 2, 1])
EVAL = np.array([[0.6, 0.3, 0.1], [0.25, 0.25, 0.5], [0.1, 0.7, 0.2]])
EVAL_LABELS = np.array([1, 2, 1])

ATOMS = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
CONDITIONALS = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])


def problem_error(key, problem, **options):
    """The report of a scalar or canonical problem."""
    p, y = np.asarray(problem.inputs), np.asarray(problem.outcomes)
    if p.shape[1] == 1:
        return calibration_error(key, p[:, 0], y[:, 0].astype(int), notion="binary", **options)
    return calibration_error(key, p, np.argmax(y, axis=1), notion="canonical", **options)


def rbf(xs, ys, gamma=0.5):
    return np.exp(-gamma * ((xs[:, None] - ys[None]) ** 2).sum(-1))


def double_loop(residuals, gram):
    """Eq. 20, pair by pair."""
    n, total = len(residuals), 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += (residuals[i] @ residuals[j] - gram[i, j]) ** 2
    return total / (n * (n - 1))


def kronecker_ridge(xs, residuals, queries, ridge, kernel=rbf):
    """Eq. 28 with the n^2 x n^2 system, for small n."""
    n = len(xs)
    gram, cross = kernel(xs, xs), kernel(xs, queries)
    system = np.kron(gram, gram) + ridge * np.eye(n * n)
    weights = np.linalg.solve(system, (residuals @ residuals.T).reshape(-1, order="F"))
    m = queries.shape[0]
    return np.array(
        [[weights @ np.kron(cross[:, i], cross[:, j]) for j in range(m)] for i in range(m)]
    )


def two_step_residual(xs, residuals, queries, ridge, kernel=rbf):
    """r(p) of eq. 32."""
    return kernel(queries, xs) @ np.linalg.solve(
        kernel(xs, xs) + ridge * np.eye(len(xs)), residuals
    )


def density_ratio(points, outcomes, query, b):
    """Eq. 25 with the Dirichlet density from its definition, math.lgamma and 0^0 = 1."""
    weights = []
    for z in points:
        alpha = z / b + 1
        log = math.lgamma(alpha.sum()) - sum(math.lgamma(a) for a in alpha)
        power = sum(
            0.0 if a == 1 else (a - 1) * math.log(p) for a, p in zip(alpha, query, strict=True)
        )
        weights.append(math.exp(log + power))
    weights = np.array(weights)
    return weights @ outcomes / weights.sum()
