"""Hugging Face's Trainer and Accelerate take the steps of a plain loop."""

from copy import deepcopy

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

from tangograd import TANGO, Categorical
from tangograd.integrations.hugging_face import TangoTrainer

from ..cases import mlp
from ..test_optimizer import batches, train
from ..test_session import same

PLAIN = {"gamma": 0.1, "preconditioner": None}


class Logits(nn.Module):
    """Any module that returns logits is a model."""

    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, inputs, labels=None):
        del labels
        return {"logits": self.body(inputs)}


def gpt2(**options):
    """A language model whose name does not tell Trainer that its loss shifts labels."""
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False, **options)
    )


def rows(data):
    """Batches as a data set."""
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    return [{"inputs": a, "labels": b} for a, b in zip(x, y, strict=True)]


def arguments(folder, size, **options):
    return TrainingArguments(
        folder,
        **{
            "num_train_epochs": 1,
            "per_device_train_batch_size": size,
            "train_sampling_strategy": "sequential",
            "max_grad_norm": 0,
            "lr_scheduler_type": "constant",
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "remove_unused_columns": False,
        }
        | options,
    )


def trainer(model, data, folder, size, optimizer, likelihood=None, **options):
    return TangoTrainer(
        model,
        arguments(folder, size, **options),
        train_dataset=data,
        eval_dataset=data,
        optimizers=(optimizer, None),
        likelihood=likelihood,
    )


class TestTrainer:
    @pytest.mark.parametrize("gamma", ["auto", "max"])
    def test_the_steps_are_those_of_a_plain_loop(self, gamma, tmp_path):
        data = batches(8)
        model = Logits()
        twin, likelihood = deepcopy(model.body), Categorical()
        same_likelihood = deepcopy(likelihood)
        optimizer = TANGO(model.parameters(), gamma=gamma)
        run = trainer(model, rows(data), tmp_path, 5, optimizer, likelihood)
        run.train()
        other = TANGO(twin.parameters(), gamma=gamma)
        train(twin, other, same_likelihood, data)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)
        assert optimizer.param_groups[0]["steps"] == 8

    def test_accumulation_weights_parts_by_their_labels(self, tmp_path):
        """Three micro-batches of 4 with 1, 3 and 3 labels make one batch of 7."""
        data = batches(2, rows=6)
        for _, labels in data:
            labels[:3] = -100
        data[1][1][1] = 2
        model = Logits()
        twin = deepcopy(model.body)
        optimizer = TANGO(model.parameters(), **PLAIN)
        trainer(model, rows(data), tmp_path, 4, optimizer, gradient_accumulation_steps=3).train()
        whole = [tuple(torch.cat(parts) for parts in zip(*data, strict=True))]
        train(twin, TANGO(twin.parameters(), **PLAIN), Categorical(), whole)
        assert optimizer.param_groups[0]["steps"] == 1
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("parts", [1, 3])
    def test_causal_models_predict_the_next_token(self, parts, tmp_path):
        tokens = torch.randint(11, (6, 5))
        labels = tokens.clone()
        labels[:2, 3:] = -100  # parts have different numbers of labels
        model = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        twin = deepcopy(model)
        expected = model(input_ids=tokens, labels=labels).loss
        optimizer = TANGO(model.parameters(), **PLAIN)
        pairs = zip(tokens, labels, strict=True)
        data = [{"input_ids": row, "labels": y} for row, y in pairs]
        options = {"gradient_accumulation_steps": parts, "per_device_eval_batch_size": 6}
        run = trainer(model, data, tmp_path, 6 // parts, optimizer, **options)
        assert run.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-6)
        assert run.train().training_loss == pytest.approx(expected.item(), rel=1e-6)
        other = TANGO(twin.parameters(), **PLAIN)
        with other.tangents(twin):
            loss = Categorical()(twin(input_ids=tokens).logits[:, :-1], labels[:, 1:])
        loss.backward()
        other.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)

    def test_other_models_keep_their_labels(self, tmp_path):
        sizes = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 2, "intermediate_size": 6, "max_position_embeddings": 8}
        model = BertForMaskedLM(BertConfig(**sizes)).eval()
        tokens = torch.randint(11, (6, 5))
        data = [{"input_ids": row, "labels": row.roll(1)} for row in tokens]
        run = trainer(model, data, tmp_path, 6, TANGO(model.parameters(), **PLAIN))
        expected = model(input_ids=tokens, labels=tokens.roll(1, 1)).loss.item()
        assert run.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)

    def test_evaluation_is_of_the_plain_loss(self, tmp_path):
        data, model = batches(2), Logits()
        run = trainer(model, rows(data), tmp_path, 5, TANGO(model.parameters(), **PLAIN))
        x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
        found = run.evaluate()["eval_loss"]
        assert found == pytest.approx(Categorical()(model.body(x), y).item(), rel=1e-6)

    def test_resuming(self, tmp_path):
        """Training stops in the middle and goes on from Trainer's own checkpoint."""

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step == 6

        data = rows(batches(10))

        def run(folder):
            torch.manual_seed(3)
            model = Logits()
            optimizer = TANGO(model.parameters())
            options = {"save_strategy": "steps", "save_steps": 6}
            return trainer(model, data, folder, 5, optimizer, **options), optimizer

        whole, optimizer = run(tmp_path / "whole")
        whole.train()
        first, _ = run(tmp_path / "parts")
        first.add_callback(Stop())
        first.train()
        second, resumed = run(tmp_path / "parts")
        second.likelihood = Categorical(generator=torch.Generator().manual_seed(9))
        second.train(resume_from_checkpoint=True)
        for p, q in zip(whole.model.parameters(), second.model.parameters(), strict=True):
            assert p.equal(q)
        assert same(optimizer.state_dict(), resumed.state_dict())

    def test_clipping_is_warned_of(self, tmp_path):
        model = Logits()
        with pytest.warns(RuntimeWarning, match="set max_grad_norm=0"):
            trainer(model, [], tmp_path, 1, TANGO(model.parameters()), max_grad_norm=1.0)

    def test_another_optimizer_is_refused(self, tmp_path):
        model = Logits()
        sgd = torch.optim.SGD(model.parameters())
        with pytest.raises(TypeError, match="its optimizer is SGD"):
            trainer(model, rows(batches(1)), tmp_path, 5, sgd).train()


class TestAccelerate:
    @pytest.mark.parametrize("parts", [1, 2])
    def test_the_steps_are_those_of_a_plain_loop(self, parts):
        data = batches(6, rows=8)
        model = mlp()
        twin = deepcopy(model)
        x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
        tango = TANGO(model.parameters(), **PLAIN)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
        loader = DataLoader(TensorDataset(x, y), batch_size=8 // parts)
        prepared, optimizer, loader = accelerator.prepare(model, tango, loader)
        likelihood = Categorical()
        for inputs, targets in loader:
            with accelerator.accumulate(prepared):
                with tango.tangents(prepared):
                    loss = likelihood(prepared(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        train(twin, TANGO(twin.parameters(), **PLAIN), Categorical(), data)
        assert tango.param_groups[0]["steps"] == 6
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)
