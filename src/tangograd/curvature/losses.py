"""Running statistics of the loss of batches: whether it rises."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

#: Running statistics forget at this rate a step, once they have seen more than its inverse.
RATE = 0.1


@dataclass
class LossHistory:
    """Running mean and variance of the loss, over about ten steps.

    The loss of each batch is read anyway. A rise of the running mean is judged against its
    standard error, so that noise between batches is not taken for one.

    Attributes:
        count: the number of finite losses seen.
        mean: the running mean.
        variance: the running variance around it.
        first: the mean of the first losses; NaN until there are ten.
        reference: the lowest running mean at a refresh since the last guard; NaN before.

    Example:
        >>> history = LossHistory()
        >>> for loss in [4.0] * 20:
        ...     history.add(loss)
        >>> history.mark()
        >>> history.is_high(4.0), history.has_risen()
        (False, False)
        >>> for loss in [5.0] * 20:
        ...     history.add(loss)
        >>> history.has_risen()
        True
    """

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    first: float = math.nan
    reference: float = math.nan

    def add(self, loss: float) -> None:
        """Take the loss of a batch; a loss that is not finite is ignored."""
        if not math.isfinite(loss):
            return
        self.count += 1
        deviation = loss - self.mean if self.count > 1 else 0.0
        self.mean = self.mean + max(1 / self.count, RATE) * deviation if self.count > 1 else loss
        if self.count > 1:
            self.variance += max(1 / (self.count - 1), RATE) * (deviation**2 - self.variance)
        if self.count == round(1 / RATE):
            self.first = self.mean

    def mark(self, *, anew: bool = False) -> None:
        """Make the running mean the reference of :meth:`has_risen` if it is lower.

        Args:
            anew: also if it is higher, as after a guard.
        """
        if self.count >= 1 / RATE and (anew or not self.mean > self.reference):
            self.reference = self.mean

    def is_high(self, loss: float, deviations: float = 1.0) -> bool:
        """Return whether a loss is above the running mean by some standard deviations.

        With fewer than three losses nothing is known, and every loss counts as high.
        """
        return self.count < 3 or loss > self.mean + deviations * math.sqrt(self.variance)

    def has_risen(self, errors: float = 5.0) -> bool:
        """Return whether the running mean is above the reference by some standard errors."""
        return self._exceeds(self.reference, errors)

    def is_above_start(self, errors: float = 4.0) -> bool:
        """Return whether the running mean is above the mean of the first losses."""
        return self._exceeds(self.first, errors)

    def _exceeds(self, level: float, errors: float) -> bool:
        error = math.sqrt(2 * self.variance * RATE / (2 - RATE))
        return self.count > 1 / RATE and self.mean > level + errors * error

    def state_dict(self) -> dict[str, float]:
        """Return the numbers that a saved run needs to continue."""
        return asdict(self)
