"""The logistic probe of one layer and one C, as it is saved and applied."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from probes.logistic.checks import check_finite
from probes.logistic.options import SolverOptions
from probes.logistic.result import LogisticFit


class LinearProbe(nn.Module):
    """A linear classifier of latents, with the standardisation it was fitted under.

    Args:
        width: Dimension `D` of a latent.
        class_names: Names of the `K` classes, in the order of the outputs.
        precision: Precision of the weights, see `SolverOptions`.
        has_default: Whether the probe of the default layer and C, which need not be the chosen one, is kept with it.

    Raises:
        UnknownNameError: An unknown precision.
    """

    compares_texts: ClassVar[bool] = False
    """Whether it is called with the latents of both texts of a pair; otherwise with their joined features."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor
    default: "LinearProbe"

    def __init__(
        self, width: int, class_names: Sequence[str], *, precision: str = "float32", has_default: bool = False
    ) -> None:
        super().__init__()
        self.width, self.class_names, self.precision = width, tuple(class_names), precision
        dtype = SolverOptions(precision=precision).dtype
        self.register_buffer("weight", torch.zeros(len(class_names), width, dtype=dtype))
        self.register_buffer("bias", torch.zeros(len(class_names), dtype=dtype))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(width, dtype=torch.float64))
        if has_default:
            self.default = LinearProbe(width, class_names, precision=precision)

    @classmethod
    def of(cls, fit: LogisticFit, class_names: Sequence[str], *, default: LogisticFit | None = None) -> "LinearProbe":
        """Take the one probe of a fit of one layer, one C and one fold.

        Args:
            fit: The fit.
            class_names: Names of its `K` classes.
            default: The fit of the default layer and C, to keep with it.

        Returns:
            The probe, in eval mode.
        """
        (weight,), (bias,) = fit.weight.flatten(0, 2), fit.bias.flatten(0, 2)
        precision = "float64" if weight.dtype == torch.float64 else "float32"
        probe = cls(weight.shape[1], class_names, precision=precision, has_default=default is not None)
        if default is not None:
            probe.default = cls.of(default, class_names)
        for own, fitted in (
            (probe.weight, weight),
            (probe.bias, bias),
            (probe.mean, fit.mean),
            (probe.scale, fit.scale),
        ):
            own.copy_(fitted.reshape(own.shape))
        return probe.eval()

    def forward(self, latents: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Score raw latents."""
        return ((latents - self.mean) / self.scale).to(self.weight.dtype) @ self.weight.T + self.bias

    def codes(self, latents: Float[Tensor, "N D"]) -> Int[Tensor, " N"]:
        """Predict the class of each row, by its position in `class_names`.

        Raises:
            HeadError: A latent that is NaN or infinite; its class would silently be the first.
        """
        check_finite(
            latents[None], rows=torch.ones(len(latents), dtype=torch.bool), first_layer=0, where="to predict: "
        )
        scores: Tensor = self(latents)
        return scores.argmax(-1)

    def predict(self, latents: Float[Tensor, "N D"]) -> list[str]:
        """Classify raw latents of the probe's layer and pooling; pairs as `join_pair` joins them.

        Args:
            latents: `(N, D)` latents.

        Returns:
            `N` class names.

        Raises:
            HeadError: A latent that is NaN or infinite.
        """
        return [self.class_names[code] for code in self.codes(latents).tolist()]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {
            "width": self.width,
            "class_names": list(self.class_names),
            "precision": self.precision,
            "has_default": "default" in self._modules,
        }
