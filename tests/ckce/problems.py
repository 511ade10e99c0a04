"""A small data set that several tests share, and CKCE written down again in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.ckce import synthetic

N, M = 40, 3


def data(seed=0, n=N, m=M, t=0.5):
    """Overconfident predictions [n, m] and labels [n]."""
    q_key, y_key = jax.random.split(jax.random.key(seed))
    truth = synthetic.dirichlet(q_key, n, m, 1.0)
    return synthetic.temperature(truth, t), synthetic.labels(y_key, truth)


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


def relabelled(key, q):
    return jax.random.categorical(key, jnp.log(q), axis=1)
