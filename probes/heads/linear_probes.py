"""Linear probes of every layer: logistic regression for classes, ridge regression for numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold
from torch import Tensor, nn

from extract.decoders.decoder_spec import GROUPS, is_number, select_from
from extract.errors import ConfigError, HeadError, TaskError, require_counts, require_name
from probes.data.class_task import ClassTask, NumberTask
from probes.fitting.saved_fits import SavedHead
from probes.heads.class_heads import Classifier, ClassLayerHead, training_codes, training_names
from probes.heads.head_table import HeadOptions, PlannedRun
from probes.heads.layer_head import Choice, Fitted, LayerHead, only_channel
from probes.heads.result import MOST_LIKELY, NO_CHOICE, Rows
from probes.latents.text_latents import ClassFeatures
from probes.logistic.estimator import MODES, check_folds, describe_oversampling, fit_oversampled, stratified_folds
from probes.logistic.problem import ConvergenceReport, LogisticFit, SolverOptions, check_codes, check_strengths
from probes.logistic.solver import fit_logistic
from probes.metrics.bootstrap import Resampling, SeedSummary, summarise_seeds
from probes.metrics.prediction_metrics import pearson, score_classes

NO_OVERSAMPLING = "none"


@dataclass(frozen=True)
class ProbeOptions:
    """Options of the head `logistic-probe`."""

    Cs: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    """Inverse strengths of the penalty, on features as the solver sees them; layer and C are chosen together."""
    oversampling: str = NO_OVERSAMPLING
    """`none`, `balance` or `times-5`: SMOTE inside the training fold, after scaling where there is scaling."""
    is_standardised: bool = True
    """Whether features are divided by their standard deviation over training rows."""
    max_iterations: int = SolverOptions.max_iterations
    """Most L-BFGS iterations per problem."""
    tol: float = SolverOptions.tol
    """Largest entry of the gradient of the mean objective at which a problem may stop; see `SolverOptions`."""
    precision: str = SolverOptions.precision
    """`float32` or `float64`, of the solver and of the weights; a tight `tol` needs float64."""
    folds: int = 5
    """Folds of cross-validation on train, used where the task has no validation split."""
    seed: int = 0
    """Seed of folds and oversampling."""

    def __post_init__(self) -> None:
        check_strengths(self.Cs)
        require_name("oversampling", self.oversampling, [NO_OVERSAMPLING, *MODES])
        require_counts(self, "folds", least=2)
        require_counts(self, "seed", least=0)
        self.solver()

    def solver(self, *, device: str = "cpu") -> SolverOptions:
        """Return the options of the solver."""
        return SolverOptions(
            tol=self.tol,
            max_iterations=self.max_iterations,
            precision=self.precision,
            is_standardised=self.is_standardised,
            device=device,
        )


def fit_probes(
    latents: Float[Tensor, "l N W"], codes: Int[Tensor, " N"], options: ProbeOptions, *, n_classes: int, device: str
) -> LogisticFit:
    """Fit every layer and C, on rows oversampled first where that is asked for."""
    solver = options.solver(device=device)
    if options.oversampling == NO_OVERSAMPLING:
        return fit_logistic(latents, codes, Cs=options.Cs, n_classes=n_classes, options=solver)
    mode, seed = options.oversampling, options.seed
    return fit_oversampled(latents, codes, Cs=options.Cs, mode=mode, seed=seed, n_classes=n_classes, options=solver)


def describe_convergence(fits: Sequence[LogisticFit]) -> dict[str, object]:
    """Say how the problems of all chunks ended, in plain values."""
    converged = torch.cat([fit.report.is_converged for fit in fits])
    return {
        "n_problems": converged.numel(),
        "n_converged": int(converged.sum()),
        "largest_gradient_norm": float(torch.cat([fit.report.gradient_norm for fit in fits]).max()),
        "n_iterations": int(torch.cat([fit.report.n_iterations for fit in fits]).sum()),
    }


def pick_probe(fits: Sequence[LogisticFit], layer: int, c: int) -> LogisticFit:
    """Take one probe (one layer, one C, one fold) out of the chunks, by position of layer, over all chunks, and C."""
    starts = np.cumsum([0, *(len(fit.weight) for fit in fits)])
    chunk = int(np.searchsorted(starts, layer, side="right")) - 1
    fit, k = fits[chunk], int(layer - starts[chunk])
    one = slice(k, k + 1), slice(c, c + 1)
    report = ConvergenceReport(*(getattr(fit.report, key)[one] for key in ConvergenceReport.__dataclass_fields__))
    return replace(
        fit,
        weight=fit.weight[one],
        bias=fit.bias[one],
        mean=fit.mean[one[0]],
        scale=fit.scale[one[0]],
        Cs=(fit.Cs[c],),
        report=report,
    )


class LinearProbe(Classifier):
    """A linear classifier of the latents of one layer: the logistic probe of one C, as it is saved and applied.

    With `has_default`, the probe of the default layer and C, which need not be the chosen one, is kept with it.
    """

    further = ("precision", "has_default")
    weight: Tensor
    bias: Tensor
    default: "LinearProbe"

    def __init__(
        self, width: int, class_names: Sequence[str], *, precision: str = "float32", has_default: bool = False
    ) -> None:
        super().__init__(width, class_names, dtype=torch.float64)
        self.precision, self.has_default = precision, has_default
        dtype = SolverOptions(precision=precision).dtype
        self.register_buffer("weight", torch.zeros(len(class_names), width, dtype=dtype))
        self.register_buffer("bias", torch.zeros(len(class_names), dtype=dtype))
        if has_default:
            self.default = LinearProbe(width, class_names, precision=precision)

    @classmethod
    def of(cls, fit: LogisticFit, class_names: Sequence[str], *, default: LogisticFit | None = None) -> "LinearProbe":
        """Take the one probe of a fit of one layer, one C and one fold, and that of the default layer and C."""
        precision = "float64" if fit.weight.dtype == torch.float64 else "float32"
        probe = cls(fit.weight.shape[-1], class_names, precision=precision, has_default=default is not None)
        if default is not None:
            probe.default = cls.of(default, class_names)
        for name in ("weight", "bias", "mean", "scale"):
            buffer = getattr(probe, name)
            buffer.copy_(getattr(fit, name).reshape(buffer.shape))
        return probe.eval()

    def forward(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Score raw latents."""
        return self.standardise(latents).to(self.weight.dtype) @ self.weight.T + self.bias


class LogisticHead(ClassLayerHead[LinearProbe]):
    """The head `logistic-probe`: every layer and C fitted on train; validation, or folds of train, choose."""

    module = LinearProbe
    option = "C"
    reads_device = True
    options: ProbeOptions

    @staticmethod
    def check(task: ClassTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task that no probe can be fitted on, or no plan be chosen on, before anything is extracted."""
        options: ProbeOptions = resolved.options
        is_one = names_one_layer(_extracted(resolved.layers, planned.extracted))
        if planned.chooses_plan and len(options.Cs) == 1 and is_one and "validation" not in task.splits:
            raise ConfigError(
                f"head {resolved.name!r} has one layer and one C, and task {task.name!r} no validation split (protocol "
                f"{planned.protocol}), so there is no score to choose a plan by; give it several Cs or layers, which "
                "train decides on by cross-validation, or use protocol icecore."
            )
        has_choice = len(options.Cs) > 1 or not names_one_layer(resolved.layers) or "+" in resolved.pooling
        selection_of(task, options, has_choice=has_choice)

    @property
    def values(self) -> tuple[float, ...]:
        """The inverse strengths."""
        return self.options.Cs

    @cached_property
    def selection(self) -> str:
        """Validation, folds of train, or nothing to choose."""
        return selection_of(self.task, self.options, has_choice=len(self.channels.names) * len(self.options.Cs) > 1)

    @property
    def fit_inputs(self) -> list[object]:
        """Add what folds keep whole, where that is more than groups."""
        return [*super().fit_inputs, *fold_inputs(self.task, self.selection)]

    @property
    def default(self) -> tuple[int, int]:
        """Position of the highest layer and of the C nearest 1."""
        return len(self.channels.names) - 1, int(np.argmin(np.abs(np.log(self.options.Cs))))

    def fit(self) -> Fitted[LinearProbe]:
        """Fit every layer and C; keep the chosen probe and the default one."""
        task = self.task
        solved = [self.solve(chunk) for chunk in self.chunks()]
        fits = [fit for fit, _ in solved]
        choice = Choice.best(np.concatenate([surface for _, surface in solved]), [1 / C for C in self.options.Cs])
        chosen = pick_probe(fits, choice.layer, choice.column)
        report = {key: value.item() for key, value in vars(chosen.report).items()}
        probe = LinearProbe.of(chosen, training_names(task), default=pick_probe(fits, *self.default))
        convergence = {**describe_convergence(fits), "chosen": report}
        return probe, choice, {"C": chosen.Cs[0], "is_pairs": task.is_pairs, "convergence": convergence}

    @cached_property
    def folds(self) -> Bool[Tensor, "F N"]:
        """The training rows of each fold."""
        options, groups = self.options, self.task.units("train")
        return stratified_folds(training_codes(self.task), n_folds=options.folds, seed=options.seed, groups=groups)

    def solve(self, chunk: Mapping[str, Tensor]) -> tuple[LogisticFit, Float[np.ndarray, "l C"]]:
        """Fit a few layers on train; also score them on validation or on what folds leave out, else give NaN."""
        task, metric, train, gold = self.task, self.metric, chunk["train"], training_codes(self.task)
        fit_rows = partial(
            fit_probes, options=self.options, n_classes=len(task.training_classes), device=self.context.device
        )
        fit = fit_rows(train, gold)
        if "validation" in chunk and "cross-validation" not in self.selection:
            predicted = task.training_classes[fit.logits(chunk["validation"]).argmax(-1).numpy()]
            return fit, np.asarray(score_classes(predicted, task.labels("validation"), metric=metric))
        if "cross-validation" not in self.selection:
            return fit, np.full((1, 1), np.nan)
        scores = []
        for inside in self.folds:
            predicted = fit_rows(train[:, inside], gold[inside]).logits(train[:, ~inside]).argmax(-1).numpy()
            scores.append(score_classes(predicted, gold[~inside].numpy(), metric=metric))
        return fit, np.asarray(np.mean(scores, axis=0))

    def likely(self, module: LinearProbe, layer: int, split: str) -> tuple[Rows, Rows]:
        """Give the classes of the highest probabilities, and these."""
        [chunk] = ClassFeatures(self.context.cache, self.task, only_channel(self.channels, layer)).chunks([split])
        shares, codes = module(chunk[split][0]).softmax(-1).topk(min(MOST_LIKELY, len(module.class_names)))
        return np.asarray(self.task.training_classes[codes.numpy()]), shares.float().numpy()

    def extras(self, saved: SavedHead[LinearProbe], predictions: Mapping[str, Rows]) -> dict[str, object]:
        """Report the default probe and how the fits converged."""
        task, (layer, c) = self.task, self.default
        default = {split: self.classify(saved.head.default, layer, split) for split in predictions}
        scores = {
            split: score_classes(codes, task.labels(split), metric=task.metric) for split, codes in default.items()
        }
        oversampled = {}
        if self.options.oversampling != NO_OVERSAMPLING:
            mode, names = self.options.oversampling, training_names(task)
            oversampled["oversampled"] = describe_oversampling(training_codes(task), mode=mode, class_names=names)
        return {
            "Cs": list(self.options.Cs),
            "default": {
                "layer": self.channels.names[layer],
                "C": self.options.Cs[c],
                "scores": {split: float(score) for split, score in scores.items()},
            },
            **oversampled,
            "convergence": saved.record.details["convergence"],
        }


def _extracted(layers: tuple[str, ...], extracted: tuple[str, ...]) -> tuple[str, ...]:
    """Resolve a selection against the extracted layers, where these are named and need no decoder to be known."""
    if set(extracted) & set(GROUPS):
        return layers
    if any(is_number(item) for item in (*layers, *extracted)):
        return extracted if len(extracted) == 1 else layers
    return select_from(layers, sorted(extracted))


def names_one_layer(layers: tuple[str, ...]) -> bool:
    """Return whether a selection names one layer, for which no cache need be asked."""
    return len(layers) == 1 and layers[0] not in GROUPS


def selection_of(task: ClassTask, options: ProbeOptions, *, has_choice: bool) -> str:
    """Say where layer and C are chosen, if there is more than one; HeadError for rows that cannot be fitted there."""
    codes, names = training_codes(task), training_names(task)
    check_codes(codes, n_classes=len(names), folds=(codes >= 0)[None])
    if not has_choice:
        return NO_CHOICE
    if "validation" in task.splits:
        return "validation"
    check_folds(codes, n_folds=options.folds, groups=task.units("train"), class_names=names)
    return f"{options.folds}-fold cross-validation on train"


def fold_inputs(task: ClassTask | NumberTask, selection: str) -> list[object]:
    """Name what folds of train keep whole where rows share a text; ids of other fits hold nothing of folds."""
    is_more = "cross-validation" in selection and task.units("train") != task.groups("train")
    return ["folds of units"] if is_more else []


# A logistic probe of few rows of each class, drawn several times: how mteb scores its classification tasks.


@dataclass(frozen=True)
class FewShotOptions:
    """Options of the head `few-shot-probe`; the defaults are mteb's."""

    draws: int = 10
    """Draws of training rows; scores are the mean over them."""
    rows: int = 8
    """Rows drawn of each class; a class with fewer gives all."""
    C: float = 1.0
    """Inverse strength of the penalty, on features that are not scaled."""
    max_iterations: int = 100
    """Most L-BFGS iterations."""
    seed: int = 42
    """Seed of the draws."""

    def __post_init__(self) -> None:
        require_counts(self, "draws", "rows", "max_iterations")
        require_counts(self, "seed", least=0)
        if not 0 < self.C < float("inf"):
            raise HeadError(f"C is {self.C}; allowed: a number above 0.")

    def solver(self, device: str) -> SolverOptions:
        """Return the options of the solver."""
        return SolverOptions(max_iterations=self.max_iterations, is_standardised=False, device=device)


class FewShotProbe(Classifier):
    """Linear classifiers of raw features of one layer, one for each of `S` draws."""

    further = ("draws",)
    weight: Tensor
    bias: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, draws: int) -> None:
        super().__init__(width, class_names)
        self.draws = draws
        self.register_buffer("weight", torch.zeros(draws, len(class_names), width, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros(draws, len(class_names), dtype=torch.float64))

    def by_draw(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "S N K"]:
        """Score raw features by the classifier of every draw."""
        return features.double() @ self.weight.mT + self.bias.unsqueeze(1)

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Score raw features by the classifier of the first draw, whose predictions a run shows."""
        return self.by_draw(features)[0]


def draw_rows(codes: Int[np.ndarray, " N"], options: FewShotOptions) -> list[NDArray[np.int64]]:
    """Draw the rows of every draw: in a new random order, the first ones of each class.

    Example:
        >>> [len(rows) for rows in draw_rows(np.array([0, 1, 1, 1]), FewShotOptions(draws=2, rows=2))]
        [3, 3]
    """
    rng = np.random.default_rng(options.seed)
    orders = [rng.permutation(len(codes)) for _ in range(options.draws)]
    return [
        np.concatenate([order[codes[order] == code][: options.rows] for code in np.unique(codes)]) for order in orders
    ]


class FewShotHead(ClassLayerHead[FewShotProbe]):
    """The head `few-shot-probe`: every layer fitted on every draw; the mean on validation chooses the layer."""

    module = FewShotProbe
    option = "C"
    reads_device = True
    options: FewShotOptions

    @staticmethod
    def check(task: ClassTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task without rows to report, or without validation where a plan is to be chosen."""
        if planned.chooses_plan and "validation" not in task.splits:
            raise TaskError(
                f"task {task.name!r} has no split 'validation', on which head {resolved.name!r} chooses its plan; add "
                "rows to it, or use logistic-probe."
            )

    @property
    def values(self) -> tuple[float]:
        """The only inverse strength."""
        return (self.options.C,)

    @property
    def selection(self) -> str:
        """Validation, or nothing to choose."""
        return "validation" if len(self.channels.names) > 1 else NO_CHOICE

    def fit(self) -> Fitted[FewShotProbe]:
        """Fit every layer on every draw, choose a layer, and keep its classifiers."""
        task, options, names = self.task, self.options, self.channels.names
        if len(names) > 1 and "validation" not in task.splits:
            raise TaskError(
                f"task {task.name!r} has no split 'validation' to choose among {len(names)} layers on; add rows to it, "
                "or name one layer with `layers`."
            )
        codes = training_codes(task)
        draws = [torch.from_numpy(rows) for rows in draw_rows(codes.numpy(), options)]
        probes: list[list[tuple[Tensor, Tensor]]] = []  # of every layer and draw: weights and intercepts, raw features
        scores: list[NDArray[np.float64]] = []
        for chunk in self.chunks():
            fits = [
                fit_logistic(
                    chunk["train"][:, rows],
                    codes[rows],
                    Cs=[options.C],
                    n_classes=len(task.training_classes),
                    options=options.solver(self.context.device),
                )
                for rows in draws
            ]
            probes += [[fit.raw(layer, 0) for fit in fits] for layer in range(len(chunk["train"]))]
            if "validation" in chunk:
                gold = task.labels("validation")
                predicted = [task.training_classes[fit.logits(chunk["validation"]).argmax(-1).numpy()] for fit in fits]
                scores += list(np.mean([score_classes(rows, gold, metric=task.metric) for rows in predicted], axis=0))
        choice = Choice.best(np.array(scores) if scores else np.full((1, 1), np.nan))
        weights, biases = zip(*probes[choice.layer], strict=True)
        module = FewShotProbe(self.features.width, training_names(task), draws=options.draws)
        module.weight.copy_(torch.stack(weights))
        module.bias.copy_(torch.stack(biases))
        return module.eval(), choice, {"is_pairs": task.is_pairs}

    def predict(self, module: FewShotProbe, layer: int, split: str) -> Mapping[str, Rows]:
        """Predict the classes of a split with every draw."""
        return dict.fromkeys(self.task.metrics, self.classify(module.by_draw, layer, split))


# Ridge probes of a number task: every layer and alpha, the best on validation, test read once.


@dataclass(frozen=True)
class RidgeOptions:
    """Options of the head `ridge-probe`."""

    alphas: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    """Penalties. Features are standardised and errors are summed over rows: against `N` rows, an alpha of `N` halves
    the weight of a single feature."""
    folds: int = 5
    """Folds of cross-validation on train, used where the task has no validation split."""
    seed: int = 0
    """Seed of the folds, where rows are not grouped."""

    def __post_init__(self) -> None:
        if not self.alphas or not all(0 < alpha < np.inf for alpha in self.alphas):
            raise HeadError(f"alphas are {list(self.alphas)}; allowed: one or more finite numbers above 0.")
        require_counts(self, "folds", least=2)
        require_counts(self, "seed", least=0)


class RidgeProbe(nn.Module):
    """A linear regression of latents of dimension `width`, with the standardisation it was fitted under, in float64."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        for name in ("weight", "mean", "scale"):
            self.register_buffer(name, torch.zeros(width, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros((), dtype=torch.float64))

    def arguments(self) -> dict[str, object]:
        """Return the constructor's arguments as plain values."""
        return {"width": self.width}

    def forward(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Predict the number of each raw latent."""
        return ((latents.double() - self.mean) / self.scale) @ self.weight + self.bias

    def predict(self, latents: Float[Tensor, "N D"]) -> Float[np.ndarray, " N"]:
        """Predict as `forward` does, outside torch."""
        return np.asarray(self(latents).numpy())


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Ridge regressions of one layer under `A` penalties, of features standardised by `mean` and `scale`."""

    weight: Float[Tensor, "A D"]
    bias: Float[Tensor, ""]
    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]

    def predict(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, "A N"]:
        """Predict the number of each raw latent under every penalty."""
        return self.weight @ ((latents.double() - self.mean) / self.scale).T + self.bias

    def probe(self, column: int) -> RidgeProbe:
        """Give the probe of one penalty, by its position."""
        probe = RidgeProbe(len(self.mean))
        probe.load_state_dict({**vars(self), "weight": self.weight[column]})
        return probe.eval()


def fit_ridge(latents: Float[Tensor, "N D"], gold: Float[Tensor, " N"], alphas: Sequence[float]) -> RidgeFit:
    """Minimise the sum of squared errors plus `alpha` times the squared norm of the weights, for each alpha.

    One singular value decomposition of the standardised features solves all of them; no penalty shrinks the bias.
    """
    raw, target = latents.double(), gold.double()
    if not torch.isfinite(raw).all():
        raise HeadError("a latent is NaN or infinite, so no probe can be fitted; extract again, with dtype float32.")
    mean = raw.mean(0)
    is_constant = raw.amax(0) == raw.amin(0)  # rounding in the mean must not make a constant vary
    scale = torch.where(is_constant, 1.0, raw.std(0, correction=0))
    left, values, right = torch.linalg.svd((raw - mean) / scale, full_matrices=False)
    bias = target.mean()
    shrunk = values / (values**2 + torch.tensor(alphas, dtype=torch.float64)[:, None])
    return RidgeFit((shrunk * (left.T @ (target - bias))) @ right, bias, mean, scale)


class RidgeHead(LayerHead[RidgeProbe]):
    """The head `ridge-probe`: every layer and alpha; validation, or folds of train, choose by Pearson."""

    module = RidgeProbe
    option = "alpha"
    task: NumberTask
    options: RidgeOptions

    @staticmethod
    def check(task: NumberTask, resolved: HeadOptions, planned: PlannedRun) -> None:
        """Refuse a task without splits to fit and choose on, or with fewer rows or groups than folds."""
        del planned  # there is always a score to choose a plan by
        if "train" not in task.splits or len(task.splits) == 1:
            raise TaskError(
                f"task {task.name!r} has only {' and '.join(task.splits)}; add train, and validation or test rows."
            )
        n_units = len(set(task.units("train") or range(len(task.rows("train")))))
        folds = resolved.options.folds
        if "validation" not in task.splits and n_units < folds:
            raise HeadError(f"train has {n_units} rows or groups for {folds} folds; give more rows, or fewer folds.")

    @property
    def values(self) -> tuple[float, ...]:
        """The penalties."""
        return self.options.alphas

    @property
    def selection(self) -> str:
        """Validation, or folds of train."""
        return (
            "validation" if "validation" in self.task.splits else f"{self.options.folds}-fold cross-validation on train"
        )

    @property
    def fit_inputs(self) -> list[object]:
        """Add what folds keep whole, where that is more than groups."""
        return [*super().fit_inputs, *fold_inputs(self.task, self.selection)]

    def fit(self) -> Fitted[RidgeProbe]:
        """Fit every layer and alpha."""
        surface = np.array([self.score(layer) for layer in range(len(self.channels.names))])
        if np.isnan(surface).all():
            raise HeadError("every ridge probe predicts the same number for every row; check the latents and the rows.")
        choice = Choice.best(surface, self.options.alphas)
        fit = self.fit_rows(self.read(choice.layer, "train"))
        return fit.probe(choice.column), choice, {"alpha": self.options.alphas[choice.column]}

    def score(self, layer: int) -> Float[np.ndarray, " A"]:
        """Correlate the predictions of every alpha at a layer, on validation or on what folds of train leave out."""
        latents, options, groups = self.read(layer, "train"), self.options, self.task.units("train")
        if "validation" in self.task.splits:
            predicted = self.fit_rows(latents).predict(self.read(layer, "validation"))
            return pearson(predicted.numpy(), self.task.numbers("validation"))
        predicted = torch.empty(len(options.alphas), len(latents), dtype=torch.float64)
        shuffled = KFold(options.folds, shuffle=True, random_state=options.seed)
        folds = shuffled if groups is None else GroupKFold(options.folds)
        for others, held_out in folds.split(latents, groups=groups):
            predicted[:, held_out] = self.fit_rows(latents, others).predict(latents[held_out])
        return pearson(predicted.numpy(), self.task.numbers("train"))

    def fit_rows(self, latents: Float[Tensor, "N D"], rows: slice | np.ndarray = slice(None)) -> RidgeFit:
        """Fit every alpha on some rows of train, all by default."""
        return fit_ridge(latents[rows], torch.from_numpy(self.task.numbers("train")[rows]), self.options.alphas)

    def read(self, layer: int, split: str) -> Float[Tensor, "N D"]:
        """Read the latents of a split at a layer."""
        rows = self.context.cache.rows_of(list(self.task.rows(split)["text"]))
        return only_channel(self.channels, layer).gather(self.context.cache, rows)[0]

    def predict(self, module: RidgeProbe, layer: int, split: str) -> Mapping[str, Rows]:
        """Predict the numbers of a split."""
        return dict.fromkeys(self.task.metrics, module(self.read(layer, split)).numpy()[None])

    def summarise(self, split: str, metric: str, predicted: Rows) -> SeedSummary:
        """Correlate predictions with the numbers."""
        return summarise_seeds(
            predicted,
            self.task.numbers(split),
            metric=metric,
            groups=self.task.units(split),
            resampling=Resampling(self.context.n_resamples),
        )

    def row_scores(self, split: str, predicted: Rows) -> NDArray[np.float64]:
        """Score a row by its absolute error, with a minus."""
        return np.asarray(-np.abs(predicted - self.task.numbers(split)), np.float64)

    def extras(self, saved: SavedHead[RidgeProbe], predictions: Mapping[str, Rows]) -> dict[str, object]:
        """Report the errors of the probe and of the mean of train."""
        del saved
        mean = self.task.numbers("train").mean()

        def rmse(predicted: Rows | float, split: str) -> float:
            return float(np.sqrt(np.mean((predicted - self.task.numbers(split)) ** 2)))

        return {
            "rmse": {
                split: {"probe": rmse(predicted, split), "mean_of_train": rmse(mean, split)}
                for split, predicted in predictions.items()
            }
        }
