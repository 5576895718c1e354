"""Hugging Face's Trainer: `TangoTrainer` is one whose loss is a likelihood.

A small BERT, with nothing pretrained, learns which of 4 tokens a sentence has most of.

    python examples/hugging_face_trainer.py
"""

import tempfile

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from tangograd import TANGO
from tangograd.integrations.hugging_face import TangoTrainer


def main() -> list[float]:
    torch.manual_seed(0)
    tokens = torch.randint(4, (512, 9))
    labels = nn.functional.one_hot(tokens).sum(1).argmax(1)
    sentences = [
        {"input_ids": sentence, "labels": label}
        for sentence, label in zip(tokens, labels, strict=True)
    ]
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=4,
            num_labels=4,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=0.2,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = TangoTrainer(
            model,
            TrainingArguments(
                folder,
                num_train_epochs=6,
                per_device_train_batch_size=32,
                max_grad_norm=0,
                logging_steps=16,
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=sentences,
            optimizers=(TANGO(model.parameters()), None),
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
