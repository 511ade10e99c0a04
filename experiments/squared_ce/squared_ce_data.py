"""Predictions to put through the pipeline: the CIFAR-10 networks, and classifiers of digits."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from scipy.special import softmax

CIFAR_NETWORKS = (
    "densenet121",
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "resnet18",
    "resnet_orig",
    "vgg16_bn",
)
CIFAR_SOURCE = (
    "softmax outputs of seven networks on the 10,000 CIFAR-10 test images, from the repository of "
    "Widmann, Lindsten and Zachariah (NeurIPS 2019): one CSV file a network (ten columns, no "
    "header) and labels.csv"
)
DIGIT_CLASSIFIERS = ("logistic regression", "naive Bayes", "random forest", "neural network")


def cifar10(folder: Path, network: str, rows: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [10000, 10] divided by their sums (they are rounded), and labels from 0.

    The file of labels counts the classes from 1.
    """
    p = np.loadtxt(folder / f"{network}.csv", delimiter=",", max_rows=rows)
    labels = np.loadtxt(folder / "labels.csv", dtype=int, max_rows=rows)
    return p / p.sum(axis=1, keepdims=True), labels - 1


def has_cifar10(folder: Path) -> bool:
    names = [*(f"{network}.csv" for network in CIFAR_NETWORKS), "labels.csv"]
    return all((folder / name).is_file() for name in names)


def logits(folder: Path, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities by a float64 softmax, and labels from 0, of ``folder``/``model``.npz.

    The file holds ``logits`` [n, m] and ``labels`` [n]; ValueError, with its name, for another.
    """
    path = folder / f"{model}.npz"
    try:
        with np.load(path) as value:
            return softmax(value["logits"].astype(float), axis=1), np.asarray(
                value["labels"]
            ).astype(int)
    except (BadZipFile, KeyError, OSError, ValueError) as error:
        raise ValueError(
            f"{path}: wanted arrays 'logits' [n, m] and 'labels' [n]: {error}"
        ) from None


def digits(classifier: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities on the second half of scikit-learn's digits, trained on the first half."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y, half = x[order] / 16, y[order], len(y) // 2
    model = {
        "logistic regression": LogisticRegression(max_iter=2000),
        "naive Bayes": GaussianNB(var_smoothing=1e-3),
        "random forest": RandomForestClassifier(100, random_state=0),
        "neural network": MLPClassifier((64,), max_iter=500, random_state=0),
    }[classifier]
    model.fit(x[:half], y[:half])
    return model.predict_proba(x[half:]).astype(np.float64), y[half:]
