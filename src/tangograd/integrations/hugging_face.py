"""Hugging Face's Trainer with a likelihood for its loss."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from tangograd.likelihoods import Categorical, Likelihood
from tangograd.optimizer import TANGO

LIKELIHOOD = "likelihood.pt"


class TangoTrainer(transformers.Trainer):
    """A ``Trainer`` for TANGO: the model's outputs and the labels go to a likelihood.

    Give it ``optimizers=(TANGO(model.parameters()), None)``, or a scheduler in the place of
    ``None``, and ``max_grad_norm=0`` in its arguments (see :func:`tangograd.clip_move_`).
    Accumulation, checkpoints, evaluation and mixed precision work as always; checkpoints have the
    likelihood's state, too, so that a resumed run equals an uninterrupted one.

    Args:
        *args: as for ``Trainer``.
        likelihood: of the logits and labels; :class:`tangograd.Categorical` by default, which
            leaves out labels of -100. Models for causal language modelling have their labels
            shifted, as their own loss has.
        **kwargs: as for ``Trainer``.
    """

    def __init__(self, *args: Any, likelihood: Likelihood | None = None, **kwargs: Any) -> None:
        self.likelihood = Categorical() if likelihood is None else likelihood
        kwargs["compute_loss_func"] = self._likelihood_of
        super().__init__(*args, **kwargs)
        # Trainer's flag, by which it counts labels, misses GPT-2 and other models of old names
        self._loss_shifts_labels = self._loss_shifts_labels or _is_causal(self.model)
        if self.args.max_grad_norm:
            warnings.warn(
                f"max_grad_norm={self.args.max_grad_norm} clips g - F̂v, which changes where the "
                "velocity settles: set max_grad_norm=0, and limit the length of steps, if need "
                "be, with tangograd.clip_move_",
                RuntimeWarning,
                stacklevel=2,
            )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the loss as ``Trainer`` does; in training, under `tangents`."""
        if not torch.is_grad_enabled():
            return super().compute_loss(model, inputs, *args, **kwargs)
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if not isinstance(optimizer, TANGO):
            raise TypeError(
                f"TangoTrainer trains with TANGO, but its optimizer is {type(optimizer).__name__}: "
                "give it optimizers=(TANGO(model.parameters()), None)"
            )
        optimizer.scaler = self.accelerator.scaler
        with optimizer.tangents(model):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def _likelihood_of(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The mean over labels; in accumulation, each part has its share of the labels."""
        logits = outputs["logits"]
        if self._loss_shifts_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        loss: Tensor = self.likelihood(logits, labels)
        if num_items_in_batch is None:
            return loss
        return loss * (labels.ne(-100).sum() / num_items_in_batch)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the likelihood, too: its pseudo-samples' generator, and a tracked variance."""
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save(self.likelihood.state_dict(), Path(output_dir) / LIKELIHOOD)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / LIKELIHOOD).is_file():
            self.likelihood.load_state_dict(
                torch.load(Path(checkpoint) / LIKELIHOOD, weights_only=True)
            )


def _is_causal(model: Any) -> bool:
    """Whether the model, or that inside an adapter of PEFT, predicts the next token."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = type(inner).__name__
    return bool(
        name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        and name not in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
        and not inner.config.is_encoder_decoder
    )
