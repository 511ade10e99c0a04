"""A small data set that several tests share, and CKCE written down again in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from reference.classes import absolute, canonical_error

N, M = 40, 3


def drawn(seed=0, n=N, m=M, concentration=1.0):
    """Dirichlet probabilities [n, m] and labels [n] drawn from them, by NumPy: nothing compiles."""
    random = np.random.default_rng(seed)
    truth = random.dirichlet(np.full(m, concentration), n)
    return truth, (random.uniform(size=(n, 1)) > np.cumsum(truth, axis=1)[:, :-1]).sum(axis=1)


def tempered(q, t):
    powers = q ** (1 / t)
    return powers / powers.sum(axis=1, keepdims=True)


def data(seed=0, n=N, m=M, t=0.5):
    """Overconfident predictions [n, m] and labels [n]."""
    truth, labels = drawn(seed, n, m)
    return jnp.asarray(tempered(truth, t)), jnp.asarray(labels)


def flat(key, n, m):
    """n draws from Dir(1, .., 1), inside jit: gammas of any other shape are slow to compile."""
    gammas = jax.random.exponential(key, (n, m))
    return gammas / jnp.sum(gammas, axis=1, keepdims=True)


def one_hot(y, m=M):
    return np.eye(m)[np.asarray(y)]


def simplex_gram(p, q, gamma):
    p, q = np.asarray(p), np.asarray(q)
    gaps = np.sum((p[:, None] - q[None]) ** 2, axis=-1)
    return p @ q.T + np.exp(-gaps / (2 * gamma**2))


def trace_formula(gram, products, ridge):
    """Tr(A^-1 D A^-1 K) as the paper prints it."""
    n = len(gram)
    inverse = np.linalg.inv(gram + ridge * n * np.eye(n))
    return np.trace(inverse @ products @ inverse @ gram)


def median(q):
    q = np.asarray(q)
    i, j = np.triu_indices(len(q), 1)
    return np.median(np.linalg.norm(q[i] - q[j], axis=1))


def weights(gram, ridge):
    n = len(gram)
    inverse = np.linalg.inv(gram + ridge * n * np.eye(n))
    return inverse @ gram @ inverse


def ece_of_the_paper(q, y):
    """Three bins an axis, sum of absolute differences."""
    return canonical_error(q, y, bins=3, distance=absolute).mean
