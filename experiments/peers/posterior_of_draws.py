"""Draws that exist already, as what sbi's diagnostics ask for draws."""

import numpy as np
import torch


class Posterior:
    def __init__(self, draws: np.ndarray):
        self.draws = torch.tensor(np.moveaxis(draws, 1, 0))  # [m, n, d]

    def sample_batched(self, sample_shape, x, show_progress_bars=False):
        if (*sample_shape, len(x)) != self.draws.shape[:2]:
            raise ValueError(f"there are draws of shape {tuple(self.draws.shape)}")
        return self.draws

    def sample(self, sample_shape, x, show_progress_bars=False):
        raise NotImplementedError("the diagnostics that are run here draw in batches")
