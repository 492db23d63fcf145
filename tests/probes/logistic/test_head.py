"""The Lightning module around the solver."""

from pathlib import Path

import lightning
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

from extract.errors import HeadError
from probes.fitting.trainer import quiet_lightning
from probes.logistic.head import LogisticHead
from probes.logistic.solver import fit_logistic
from tests.probes.logistic.problems import plant

CS = (0.1, 10.0)


def fitted() -> tuple[LogisticHead, torch.Tensor, torch.Tensor]:
    latents, codes = plant(3, 60, 6, n_classes=4)
    head = LogisticHead(3, 6, n_classes=4, Cs=CS)
    head.fit(latents, codes)
    return head, latents, codes


def test_logits_are_those_of_the_fit() -> None:
    head, latents, codes = fitted()
    logits = head(latents)
    assert logits.shape == (3, 2, 60, 4)
    torch.testing.assert_close(logits, fit_logistic(latents, codes, Cs=CS).logits(latents))
    assert head.report is not None
    assert bool(head.report.is_converged.all())


def test_a_trainer_solves_on_what_one_epoch_gathers(tmp_path: Path) -> None:
    head, latents, codes = fitted()
    fresh = LogisticHead(3, 6, n_classes=4, Cs=CS)
    rows = TensorDataset(latents.transpose(0, 1), codes)

    def collate(items: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([item[0] for item in items], 1), torch.stack([item[1] for item in items])

    loader = DataLoader(rows, batch_size=25, collate_fn=collate)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, log_every_n_steps=1,
    )  # fmt: skip
    with quiet_lightning():
        trainer.fit(fresh, loader)
    torch.testing.assert_close(fresh.weight, head.weight, rtol=1e-4, atol=1e-5)


def test_a_saved_head_predicts_the_same(tmp_path: Path) -> None:
    head, latents, codes = fitted()
    head.choose(layer=1, c=1)
    save_file(head.state_dict(), tmp_path / "model.safetensors")
    again = LogisticHead(**head.arguments())
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(again(latents), head(latents))
    predicted = again.predict_step((latents, codes), 0)
    assert torch.equal(predicted, head(latents)[1, 1].argmax(-1))


def test_predicting_needs_a_choice() -> None:
    head, latents, codes = fitted()
    with pytest.raises(HeadError, match=r"no probe was chosen of 3 layers and 2 C.*Call choose"):
        head.predict_step((latents, codes), 0)
    with pytest.raises(HeadError, match="layer is 3; allowed: 0 to 2"):
        head.choose(layer=3, c=0)
    with pytest.raises(HeadError, match="c is -1; allowed: 0 to 1"):
        head.choose(layer=0, c=-1)


def test_a_fit_of_other_shape_is_refused() -> None:
    head, latents, codes = fitted()
    folds = torch.ones(2, 60, dtype=torch.bool)
    with pytest.raises(HeadError, match=r"weights of shape \(3, 2, 2, 4, 6\); allowed: \(3, 2, 1, 4, 6\)"):
        head.take(fit_logistic(latents, codes, Cs=CS, weights=folds))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_named_instead_of_called_the_first_class(value: float) -> None:
    head, latents, codes = fitted()
    head.choose(layer=1, c=0)
    latents[1, 7, 2] = value
    with pytest.raises(HeadError, match=rf"to predict: layer 1, row 7 holds {value} in dimension 2; allowed: finite"):
        head.predict_step((latents, codes), 0)
    head.choose(layer=0, c=0)
    assert head.predict_step((latents, codes), 0).shape == (60,)


def test_several_processes_are_refused(tmp_path: Path) -> None:
    """Each would solve on its share, and the weights would be those of whichever wrote last."""
    head, latents, codes = fitted()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_spawn", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    head.trainer = trainer
    with pytest.raises(HeadError, match="the trainer has 2 processes; allowed: 1, because the minimum is one of all"):
        head.setup("fit")
    head.setup("predict")
    head.choose(layer=0, c=0)
    assert head.predict_step((latents, codes), 0).shape == (60,)
