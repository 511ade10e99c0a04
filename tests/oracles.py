"""The equations in NumPy loops, with derivatives by hand: nothing here comes from jaxcal."""

import numpy as np


def gaussian(u):
    return np.exp(-u / 2), -np.exp(-u / 2) / 2, np.exp(-u / 2) / 4


def imq(beta):
    def f(u):
        a = 1 + u
        return a**-beta, -beta * a ** (-beta - 1), beta * (beta + 1) * a ** (-beta - 2)

    return f


def rational_quadratic(alpha):
    def f(u):
        a = 1 + u / (2 * alpha)
        return a**-alpha, -(a ** (-alpha - 1)) / 2, (alpha + 1) / (4 * alpha) * a ** (-alpha - 2)

    return f


def matern52(u):
    t = np.sqrt(5 * u)
    e = np.exp(-t)
    return (1 + t + t**2 / 3) * e, -5 / 6 * (1 + t) * e, 25 / 12 * e


def laplace(u):
    return np.exp(-np.sqrt(u)), np.nan, np.nan


def kernel_with_derivatives(f, lengths, x, y):
    """l, its gradients in x and y and the matrix of mixed derivatives, for l = f(u)."""
    gap = (x - y) / lengths**2 * np.ones_like(x)
    value, first, second = f(np.sum(((x - y) / lengths) ** 2))
    mixed = -2 * first * np.diag(np.ones_like(x) / lengths**2) - 4 * second * np.outer(gap, gap)
    return value, 2 * first * gap, -2 * first * gap, mixed


def add(one, two):
    """Derivatives of a sum of kernels."""
    return tuple(a + b for a, b in zip(one, two, strict=True))


def multiply(one, two):
    """Derivatives of a product of kernels, by the product rule."""
    (k, kx, ky, kxy), (g, gx, gy, gxy) = one, two
    return (
        k * g,
        kx * g + k * gx,
        ky * g + k * gy,
        kxy * g + np.outer(kx, gy) + np.outer(gx, ky) + k * gxy,
    )


def stein_parts(derivatives, s, t, m=None, w=None):
    """The d components of the Stein kernel of scores s, t with matrices m, w (None: identity)."""
    value, grad_x, grad_y, mixed = derivatives
    m = np.eye(len(s)) if m is None else m
    w = np.eye(len(s)) if w is None else w
    u, v = m @ s, w @ t
    return np.array(
        [
            value * u[q] * v[q]
            + u[q] * (w[q] @ grad_y)
            + v[q] * (m[q] @ grad_x)
            + m[q] @ mixed @ w[q]
            for q in range(len(s))
        ]
    )


def gram(f, length, vectors):
    """[f(|v_i - v_j|^2 / length^2)]."""
    gaps = vectors[:, None, :] - vectors[None, :, :]
    return f(np.sum(gaps**2, -1) / length**2)[0]


def stein_matrix(f, length, ys, scores, ms=None):
    """[d, n, n]: the components of h for all pairs, target kernel f(|y - y'|^2 / length^2)."""
    n, d = ys.shape
    h = np.zeros((d, n, n))
    for i in range(n):
        for j in range(n):
            parts = kernel_with_derivatives(f, np.asarray(length), ys[i], ys[j])
            left, right = (None, None) if ms is None else (ms[i], ms[j])
            h[:, i, j] = stein_parts(parts, scores[i], scores[j], left, right)
    return h


def median_distance(vectors):
    """The median distance over pairs; of the positive ones if it is 0; 1 if all are 0."""
    n = len(vectors)
    gaps = np.array(
        [np.linalg.norm(vectors[i] - vectors[j]) for i in range(n) for j in range(i + 1, n)]
    )
    if np.median(gaps) > 0:
        return np.median(gaps)
    return np.median(gaps[gaps > 0]) if np.any(gaps > 0) else 1.0


def u_statistic(h):
    n = len(h)
    return sum(h[i, j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def v_statistic(h):
    return np.sum(h) / len(h) ** 2


def quadratic_forms(h, w):
    """sum over i != j of w_i w_j h_ij for each column of w."""
    off = h - np.diag(np.diag(h))
    return np.einsum("ib,ij,jb->b", w, off, w)
