"""E5's substitute: images whose brightness shifts, and two classifiers trained on them.

No ImageNet and no pretrained network: 8 x 8 images of ten random smooth patterns with noise, and a
logistic regression and a small network trained at normal brightness. Brightness multiplies the
image before it is cut to [0, 1], so the label stays and the predictions move.
"""

import jax
import jax.numpy as jnp
import numpy as np
from reference.joint import jkce

from jaxcal.ckce import ckce, skill
from jaxcal.ckce.class_comparison import pooled

SIDE, CLASSES, NOISE = 8, 10, 0.38
MODELS = ("logistic regression", "network")


def patterns(key):
    rough = jax.random.normal(key, (CLASSES, SIDE, SIDE))
    near = jnp.exp(-0.5 * (jnp.arange(SIDE)[:, None] - jnp.arange(SIDE)) ** 2 / 1.2**2)
    smooth = near @ rough @ near
    low = smooth.min(axis=(1, 2), keepdims=True)
    high = smooth.max(axis=(1, 2), keepdims=True)
    return ((smooth - low) / (high - low)).reshape(CLASSES, -1)


def draw(key, shapes, n):
    """Images before they are cut, and their labels."""
    label_key, noise_key = jax.random.split(key)
    y = jax.random.randint(label_key, (n,), 0, CLASSES)
    return shapes[y] + NOISE * jax.random.normal(noise_key, (n, SIDE**2)), y


def seen(images, brightness):
    return jnp.clip((1 + brightness / 100) * images, 0, 1)


def logits(layers, x):
    for w, b in layers[:-1]:
        x = jnp.maximum(x @ w + b, 0)
    w, b = layers[-1]
    return x @ w + b


def train(key, sizes, x, y, steps):
    """Full-batch Adam on the cross-entropy."""
    import optax

    keys = jax.random.split(key, len(sizes) - 1)
    layers = [
        (jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    rule = optax.adam(3e-3)

    def loss(layers):
        return optax.softmax_cross_entropy_with_integer_labels(logits(layers, x), y).mean()

    def step(state, _):
        layers, moments = state
        change, moments = rule.update(jax.grad(loss)(layers), moments)
        return (optax.apply_updates(layers, change), moments), None

    start = (layers, rule.init(layers))
    return jax.jit(lambda s: jax.lax.scan(step, s, length=steps)[0])(start)[0]


def curves(key, levels, n, trials):
    """CKCE, JKCE and accuracy of both classifiers: {(level, model, measure): values [trials]}."""
    pattern_key, train_key, a_key, b_key, test_key = jax.random.split(key, 5)
    shapes = patterns(pattern_key)
    x, y = draw(train_key, shapes, 2 * n)
    x = seen(x, 0)
    fitted = [
        train(a_key, (SIDE**2, CLASSES), x, y, 300),
        train(b_key, (SIDE**2, 64, CLASSES), x, y, 150),
    ]

    @jax.jit
    def measured(key, level, shared):
        raw, labels = draw(key, shapes, n)
        q = jnp.stack([jax.nn.softmax(logits(f, seen(raw, level))) for f in fitted])

        def one(q):
            return jnp.stack(
                [
                    ckce(q, labels).estimate,
                    ckce(q, labels, bandwidth=shared).estimate,
                    jkce(q, labels).unbiased,
                    skill(q, labels).accuracy,
                ]
            )

        return jax.lax.map(one, q)

    raw, _ = draw(test_key, shapes, n)
    shared = pooled(jnp.stack([jax.nn.softmax(logits(f, seen(raw, 0))) for f in fitted]))
    keys = jax.random.split(test_key, trials)
    names = ("CKCE", "CKCE, shared", "JKCE", "accuracy")
    by_name = {}
    for level in levels:
        values = np.asarray([measured(k, float(level), shared) for k in keys])
        for i, model in enumerate(MODELS):
            for j, name in enumerate(names):
                by_name[level, model, name] = values[:, i, j]
    return by_name
