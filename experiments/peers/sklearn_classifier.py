"""A classifier of scikit-learn whose inputs are its logits."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class OfLogits(ClassifierMixin, BaseEstimator):
    def fit(self, logits, labels):
        self.classes_ = np.unique(labels)
        return self

    def decision_function(self, logits):
        return logits

    def predict(self, logits):
        return self.classes_[np.argmax(logits, axis=1)]
