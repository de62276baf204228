"""The loss scale: why half gradients survive, and when a step is skipped."""

from collections.abc import Iterable

import torch

WINDOW = 2000
"""clean steps after which a dynamic scale doubles"""


class LossScaler:
    """One loss scale, fixed or dynamic.

    A dynamic one starts at 2**16, halves when a gradient is not finite (that step is then skipped), and
    doubles after 2000 clean steps. A fixed one never looks at the gradients, so it never skips.
    """

    def __init__(self, loss_scale: float | str, min_scale: float | None, max_scale: float) -> None:
        self.dynamic = loss_scale == "dynamic"
        self.scale = min(max_scale, 2.0**16) if self.dynamic else float(loss_scale)
        self.min_scale = min_scale
        self.max_scale = max_scale
        self.unskipped = 0
        """clean steps since the scale last changed"""

    def overflowed(self, gradients: Iterable[torch.Tensor]) -> bool:
        """Whether one of the gradients holds an inf or a NaN; False for a fixed scale.

        Sync point: on a GPU this waits for the backward pass, once for all gradients together.
        """
        if not self.dynamic:
            return False
        # A sum is not finite when a summand is not, and sums of half gradients fit into float32.
        sums = [gradient.float().sum() for gradient in gradients]
        return bool(sums) and not bool(torch.stack(sums).isfinite().all())

    def update(self, overflow: bool) -> None:
        """Adapt after one backward pass."""
        if overflow:
            self.scale = max(self.min_scale or 0.0, self.scale / 2)
            self.unskipped = 0
            return
        self.unskipped += 1
        if self.dynamic and self.unskipped == WINDOW:
            self.scale = min(self.max_scale, self.scale * 2)
            self.unskipped = 0
