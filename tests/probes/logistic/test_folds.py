"""Folds that keep the share of every class."""

import pytest
import torch

from extract.errors import HeadError
from probes.logistic.estimator import check_folds, stratified_folds


def test_every_row_is_held_out_once_and_classes_keep_their_share() -> None:
    codes = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    folds = stratified_folds(codes, n_folds=5, seed=3)
    assert ((~folds).sum(0) == 1).all()
    for fold in folds:
        assert torch.bincount(codes[~fold]).tolist() == [12, 6, 2]
    assert torch.equal(folds, stratified_folds(codes, n_folds=5, seed=3))
    assert not torch.equal(folds, stratified_folds(codes, n_folds=5, seed=4))


def test_no_fold_parts_a_group() -> None:
    codes = torch.tensor([0, 1] * 30)
    groups = [row // 6 for row in range(60)]
    for fold in stratified_folds(codes, n_folds=3, seed=0, groups=groups):
        training = {groups[row] for row in fold.nonzero()[:, 0].tolist()}
        assert not training & {groups[row] for row in (~fold).nonzero()[:, 0].tolist()}


def test_a_thin_class_is_called_by_its_name() -> None:
    with pytest.raises(HeadError, match="class 'cold' has 3 rows for 5 folds"):
        check_folds(torch.tensor([0] * 9 + [1] * 3), n_folds=5, class_names=["hot", "cold"])


def test_fewer_groups_than_folds_are_refused() -> None:
    codes, groups = torch.arange(12) % 2, [str(row // 4) for row in range(12)]
    with pytest.raises(HeadError, match="3 groups with at most 6 rows of one class cannot be cut into 5 folds"):
        stratified_folds(codes, n_folds=5, seed=0, groups=groups)
