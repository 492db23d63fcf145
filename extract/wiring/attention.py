"""One wiring for every decoder: a registered attention function that asks each block for its own mask.

transformers looks up by name which function computes attention and which one builds masks. Ours are registered as
`icecore`, the only global, and one decoder's configuration selects them. What is in force is an attribute of that
configuration and of the modules of the decoder's blocks until the `with` block ends. No class is copied, subclassed or
rebound, and other models of the process keep their attention. See docs/decisions/own-wiring.md.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from extract.errors import DecoderError
from extract.inputs.spans import CONTEXT
from extract.masks.mask_kinds import MaskKind, parse_kind
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.masks.mask_rules import KeptMasks, additive, batch_mask

# Attention under a given mask: one function for every family that goes through the library's attention interface.

# What an attention layer may pass along that changes its result and that is not computed here: refused, never ignored.
DECIDING = {
    "position_bias",
    "head_mask",
    "attention_sink",
    "sinks",
    "logit_softcapping",
    "alibi",
    "indices",
    "block_indices",
}


def attend(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B K S H"],
    value: Float[Tensor, "B K S V"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Float[Tensor, "b 1 T S"] | None = None,
) -> Float[Tensor, "B T Q V"]:
    """Compute attention.

    Args:
        query: `(B, heads, T, H)`.
        key: `(B, key heads, S, H)`; a number of heads that divides the query's is repeated.
        value: `(B, key heads, S, V)`.
        mask: `(B or 1, 1, T, S)` bool, or `"none"`, `"causal"` or `"backward"` for an unpadded batch, which need no
            mask in memory.
        scaling: Factor of the scores; `H ** -0.5` when absent.
        softcap: Scores are capped smoothly at this value (Gemma 2).
        sinks: `(heads,)` learned scores of a sink that takes part in the softmax and has no value (GPT-OSS).
        bias: The mask as what is added to scores, in the dtype of the queries, if it has been made already.

    Returns:
        `(B, T, heads, V)`, contiguous.
    """
    value = _repeat_heads(value, query.shape[1])
    if softcap is None and sinks is None:
        mixed = _fast(query, _repeat_heads(key, query.shape[1]), value, mask if bias is None else bias, scaling)
    else:
        weights = attention_weights(query, key, mask=mask, scaling=scaling, softcap=softcap, sinks=sinks)
        mixed = weights.to(value.dtype) @ value
    return mixed.transpose(1, 2).contiguous()


def prefix_last(
    key: Float[Tensor, "B K T H"], value: Float[Tensor, "B K T V"], mask: Tensor | str, last: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B K S H"], Float[Tensor, "B K S V"], Bool[Tensor, "b 1 T S"]]:
    """Prepend the key and the value of the `last` token of each row, which every query sees (KV-Embedding).

    The key keeps the rotation of its own place, and no bias is added to its scores.
    """
    rows = torch.arange(len(last), device=last.device)
    shown = written_out(mask, key.new_empty(1, 1, key.shape[2], key.shape[2]))
    mask = torch.cat([torch.ones_like(shown[..., :1]), shown], dim=-1)
    key, value = (torch.cat([side[rows, :, last].unsqueeze(2), side], dim=2) for side in (key, value))
    return key, value, mask


def _repeat_heads(x: Float[Tensor, "B K T H"], n_heads: int) -> Float[Tensor, "B Q T H"]:
    n_groups = n_heads // x.shape[1]
    return x.repeat_interleave(n_groups, dim=1) if n_groups > 1 else x


def _fast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | str, scaling: float | None) -> Tensor:
    if isinstance(mask, Tensor):
        bias = mask if mask.is_floating_point() else additive(mask, query.dtype)
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    if mask == "backward":  # causal attention on the row read from its end
        query, key, value = query.flip(2), key.flip(2), value.flip(2)
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).flip(2)
    return scaled_dot_product_attention(query, key, value, is_causal=mask == "causal", scale=scaling)


def attention_weights(
    query: Float[Tensor, "B Q T H"],
    key: Float[Tensor, "B K S H"],
    *,
    mask: Tensor | str,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Float[Tensor, "B Q T S"]:
    """Compute attention weights in float32, arguments as in `attend`; learned sinks take their share of each row."""
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query @ _repeat_heads(key, query.shape[1]).transpose(2, 3) * factor).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~written_out(mask, scores), float("-inf"))
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def written_out(mask: Tensor | str, like: Float[Tensor, "*B T S"]) -> Bool[Tensor, "*b T S"]:
    """Write a shortcut out as a mask for scores such as these."""
    if isinstance(mask, Tensor):
        return mask
    table = torch.ones(1, 1, *like.shape[-2:], dtype=torch.bool, device=like.device)
    return {"none": table, "causal": table.tril(), "backward": table.triu()}[mask]


NAME = "icecore"
SHORTCUTS = {"causal": "causal", "backward": "backward", "bidirectional": "none"}
MARK = "_icecore_wiring"  # attribute of a wired decoder's configuration, and of every module of its blocks


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What the attention of a block was called with, and what came of it.

    Attributes:
        module: The attention module.
        query: `(B, heads, T, H)`.
        key: `(B, key heads, T, H)`, without what a plan prepends.
        value: `(B, key heads, T, V)`, as the keys.
        options: What the module passed along, by transformers' names.
        mask: `(B or 1, 1, T, T)` bool, or the name of a shortcut.
        mixed: `(B, T, heads, V)`, the result.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]
    mask: Tensor | str
    mixed: Tensor

    def weights(self) -> Float[Tensor, "B Q T T"]:
        """Compute the attention weights under the mask in force, in float32."""
        return torch.cat(list(self.weights_by_key_head()), dim=1)

    def weights_by_key_head(self) -> Iterator[Float[Tensor, "B Q T T"]]:
        """Compute the weights of the heads that share a key head, one such group after the other."""
        scaling, softcap, sinks = (self.options.get(name) for name in ("scaling", "softcap", "s_aux"))
        n_groups = self.key.shape[1]
        for group, query in enumerate(self.query.chunk(n_groups, dim=1)):
            own_sinks = None if sinks is None else sinks.chunk(n_groups)[group]
            key = self.key[:, group : group + 1]
            yield attention_weights(query, key, mask=self.mask, scaling=scaling, softcap=softcap, sinks=own_sinks)


@dataclass(eq=False)
class Wiring:
    """Which mask each block of one decoder attends under, and the batch that is being computed.

    Attributes:
        kinds: Mask kind per block, bottom up.
        calls: How often each block has asked for its mask since the batch began.
        windows: Sliding window of each block that has asked, in tokens; None for none.
        asked_windows: Windows for which the decoder asked transformers to build a mask, in tokens.
        watch: Receives every block's position and what its attention was called with; what it returns, unless None,
            takes the place of the result.
        by_argument: Whether masks go into the mask argument of the attention modules, not through the interface.
        attending: Position of the block whose attention module runs, where masks go into its argument.
        is_forced: Whether every run of a block attends under its kind from `kinds`, whatever the plan says.
        carriers: The attention module of each block that has asked for its mask.
        prefixed: Blocks, from 0, in which the last token's key and value are prepended.
        prepends: Whether rows have a placeholder that takes the last token's state.
        last: `(B,)` column of the last token of each row of the current batch.
        placeholder: `(B,)` column of its placeholder; None without one.
        proved: Calls whose attention has been proved at some shape: block, kind, whether run again, rows and tokens.
        around: Runs a block that an architecture runs again: receives its position, its input and the run.
    """

    kinds: list[MaskKind]
    calls: list[int] = field(default_factory=list)
    windows: dict[int, int | None] = field(default_factory=dict)
    asked_windows: set[int] = field(default_factory=set)
    watch: Callable[[int, AttentionCall], Tensor | None] | None = None
    around: Callable[[int, Tensor, Callable[[Tensor], Tensor]], Tensor] = lambda _, hidden, run: run(hidden)
    by_argument: bool = False
    attending: int | None = None
    is_forced: bool = False
    carriers: dict[int, nn.Module] = field(default_factory=dict)
    prefixed: Collection[int] = ()
    prepends: bool = False
    last: Tensor | None = None
    placeholder: Tensor | None = None
    proved: set[tuple[int, str, bool, tuple[int, int]]] = field(default_factory=set)
    _is_real: Tensor | None = None
    _is_padded: bool = False
    _spans: Tensor | None = None
    _masks: dict[tuple[MaskKind, int | None], Tensor | str] = field(default_factory=dict)
    _kept: KeptMasks = field(default_factory=KeptMasks)
    _copies: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _biases: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _own_windows: dict[tuple[int, ...], tuple[tuple[Tensor, ...], int | None]] = field(default_factory=dict)

    def set_kinds(self, kinds: Sequence[str]) -> None:
        """Set the kind of every block, bottom up; masks that were built stay."""
        self.kinds = [parse_kind(kind) for kind in kinds]

    @contextmanager
    def converted(self, block: int, kind: str) -> Iterator[None]:
        """Set another kind for one block until the `with` block ends."""
        before = self.kinds[block]
        self.kinds[block] = before if self.is_forced else parse_kind(kind)
        try:
            yield
        finally:
            self.kinds[block] = before

    @contextmanager
    def all_as(self, kind: str) -> Iterator[None]:
        """Let every run of every block attend under one kind until the `with` block ends."""
        before, self.kinds, self.is_forced = self.kinds, [parse_kind(kind)] * len(self.kinds), True
        try:
            yield
        finally:
            self.kinds, self.is_forced = before, False

    @contextmanager
    def observed(
        self,
        watch: Callable[[int, AttentionCall], Tensor | None],
        around: Callable[[int, Tensor, Callable[[Tensor], Tensor]], Tensor],
    ) -> Iterator[None]:
        """Watch attention and blocks that are run again until the `with` block ends."""
        before = self.watch, self.around
        self.watch, self.around = watch, around
        try:
            yield
        finally:
            self.watch, self.around = before

    @contextmanager
    def watched(self, watch: Callable[[int, AttentionCall], None]) -> Iterator[None]:
        """Watch attention, beside what watches it already, until the `with` block ends."""
        before = self.watch

        def both(block: int, call: AttentionCall) -> Tensor | None:
            instead = None if before is None else before(block, call)
            watch(block, call if instead is None else replace(call, mixed=instead))
            return instead

        self.watch = both
        try:
            yield
        finally:
            self.watch = before

    @property
    def silent(self) -> list[int]:
        """Positions of the blocks that have not asked for a mask in the last batch: recurrent ones."""
        return [block for block, n_calls in enumerate(self.calls) if n_calls == 0]

    @contextmanager
    def windows_apart(self) -> Iterator[None]:
        """Forget, when the `with` block ends, the windows that were seen inside it."""
        before = dict(self.windows), set(self.asked_windows)
        try:
            yield
        finally:
            self.windows, self.asked_windows = before

    def begin(
        self,
        is_real: Bool[Tensor, "B T"],
        spans: Int[Tensor, "B T"] | None = None,
        *,
        last: Int[Tensor, " B"] | None = None,
        placeholder: Int[Tensor, " B"] | None = None,
        is_padded: bool | None = None,
    ) -> None:
        """Begin a batch; only `hybrid` needs `spans`, the span number per token with `CONTEXT` outside spans.

        The `last` tokens are the last real ones when absent. Without `is_padded`, the device is asked and waited for.
        """
        self._is_real, self._spans, self.placeholder = is_real, spans, placeholder
        columns = torch.arange(is_real.shape[1], device=is_real.device)
        self.last = torch.where(is_real, columns, -1).amax(1) if last is None else last
        self._is_padded = not bool(is_real.all()) if is_padded is None else is_padded
        self._forget_batch()
        self.calls = [0] * len(self.kinds)

    def end(self) -> None:
        """End a batch: until the next one begins, a forward call is refused."""
        self._is_real = self._spans = self.last = self.placeholder = None
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._masks, self._copies, self._biases, self._own_windows = {}, {}, {}, {}

    def mask(self, block: int, window: int | None) -> Tensor | str:
        """Return the mask `(B, 1, T, T)` of a block for the current batch, or the name of a shortcut that needs none.

        `window` is the sliding window of its attention, in tokens. Outside a batch this raises `DecoderError`.
        """
        if self._is_real is None:
            raise DecoderError("a wired decoder was called on its own; run it through icecore, which begins a batch.")
        self.calls[block] += 1
        self.windows[block] = window
        kind = self.kinds[block]
        window = None if window is None or window >= self._is_real.shape[1] else window
        key = (kind, window)
        if key not in self._masks:
            self._masks[key] = self._build(kind, self._is_real, window)
        return self._masks[key]

    def bias(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a mask of the current batch as what is added to scores; made once a batch for all blocks."""
        key = id(mask), dtype
        if key not in self._biases:
            self._biases[key] = mask, additive(mask, dtype)  # with the mask, so that its id is not given away
        return self._biases[key][1]

    def placed(self, side: Tensor, device: torch.device) -> Tensor:
        """Return a mask or a side of the current batch on the device of a block; each is copied there once a batch."""
        if side.device == device:
            return side
        key = id(side), device
        if key not in self._copies:
            self._copies[key] = side, side.to(device)  # with the original, so that its id is not given away
        return self._copies[key][1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Rows and tokens of the current batch."""
        return () if self._is_real is None else tuple(self._is_real.shape)

    def window_of(self, own: Sequence[Tensor], shown: Callable[[], Tensor], *, family: str) -> int | None:
        """Read the window off a family's own mask as `window_within`, once for all blocks that are given the same.

        `own` are the mask and the triangles that make it, `shown` puts them together.
        """
        key = tuple(map(id, own))
        if key not in self._own_windows:
            self._own_windows[key] = tuple(own), self.window_within(shown(), family=family)
        return self._own_windows[key][1]

    def window_within(self, shown: Bool[Tensor, "b Q T T"], *, family: str) -> int | None:
        """Read the window off a family's own mask for the current batch, in tokens; None for none.

        `DecoderError` where it is not causal with a window or without.
        """
        if self._is_real is None:
            return None
        is_real = self.placed(self._is_real, shown.device)
        order = is_real.long().cumsum(1) - 1
        distance = (order.unsqueeze(2) - order.unsqueeze(1)).unsqueeze(1)
        pairs = (is_real.unsqueeze(2) & is_real.unsqueeze(1)).unsqueeze(1)
        outside = distance[pairs & (distance >= 0) & ~shown.any(1, keepdim=True)]
        window = int(outside.min()) if len(outside) else None
        causal = (distance >= 0) & (distance < (window or order.shape[1]))
        if bool(((shown ^ causal) & pairs).any()):
            raise only_causal(family, "gives its blocks masks that are not causal")
        return window

    def _build(self, kind: MaskKind, is_real: Tensor, window: int | None) -> Tensor | str:
        if kind.needs_spans:
            spans = torch.full(is_real.shape, CONTEXT, device=is_real.device) if self._spans is None else self._spans
            return batch_mask(kind, is_real, spans=spans, window=window).unsqueeze(1)
        if self._is_padded:
            return batch_mask(kind, is_real, window=window).unsqueeze(1)
        if kind.name in SHORTCUTS and window is None:
            return SHORTCUTS[kind.name]
        return self._kept.build(kind, is_real, window=window)


class Mark(NamedTuple):
    """What a module of a wired decoder carries."""

    wiring: Wiring
    block: int


def wired_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention under the mask of the block that asks; called by transformers.

    A layer that passes something unsupported that would change attention is refused with `DecoderError`.
    """
    mark: Mark | None = getattr(module, MARK, None)
    if mark is None:
        raise DecoderError(
            f"a {type(module).__name__} that was never wired is called with our attention: it shares its configuration "
            "object with a decoder that is. Give each model a configuration of its own."
        )
    unknown = sorted(name for name in DECIDING if options.get(name) is not None)
    if attention_mask is not None:  # `no_mask` gave the decoder none
        unknown.append("a mask of its own making")
    if unknown:
        raise DecoderError(
            f"attention of {type(module).__name__} uses {', '.join(unknown)}, which mask plans do not know; "
            "only the plan 'causal' works for this decoder."
        )
    mark.wiring.carriers[mark.block] = module
    mask = mark.wiring.mask(mark.block, options.get("sliding_window"))
    how: dict[str, Any] = {
        "mask": mark.wiring.placed(mask, query.device) if isinstance(mask, Tensor) else mask,
        "scaling": options.get("scaling"),
        "softcap": options.get("softcap"),
        "sinks": options.get("s_aux"),
    }
    if mark.block in mark.wiring.prefixed and mark.wiring.last is not None:
        seen_key, seen_value, mask = prefix_last(
            key, value, how["mask"], mark.wiring.placed(mark.wiring.last, key.device)
        )
        mixed = attend(query, seen_key, seen_value, **{**how, "mask": mask})
    else:
        shared = mark.wiring.bias(how["mask"], query.dtype) if _adds_bias(how) else None
        mixed = attend(query, key, value, bias=shared, **how)
    if mark.wiring.watch is None:
        return mixed, None
    instead = mark.wiring.watch(mark.block, AttentionCall(module, query, key, value, options, how["mask"], mixed))
    return mixed if instead is None else instead, None


def _adds_bias(how: dict[str, Any]) -> bool:
    """Whether attention adds its mask to the scores as a bias."""
    return isinstance(how["mask"], Tensor) and how["softcap"] is None and how["sinks"] is None


def no_mask(*_: Any, config: Any = None, local_size: int | None = None, **__: Any) -> None:
    """Replace the mask builder of transformers, since the plan provides the masks; note the windows asked for."""
    wiring: Wiring | None = getattr(config, MARK, None)
    is_windowed = set(getattr(config, "layer_types", None) or ("windowed",)) != {"full_attention"}
    if wiring is not None and local_size is not None and is_windowed:
        wiring.asked_windows.add(local_size)


@contextmanager
def wired(module: nn.Module, blocks: Sequence[nn.Module], kinds: Sequence[str], *, family: str) -> Iterator[Wiring]:
    """Wire a decoder, given without its head, until the `with` block ends, and leave it as it was found.

    `begin` of the wiring must be called before each forward call.

    Raises:
        DecoderError: The family does not let its attention be chosen; says which plan works.
    """
    _register()
    wiring = Wiring([parse_kind(kind) for kind in kinds])
    config: Any = module.config
    before = config._attn_implementation
    marks = {part: Mark(wiring, index) for index, block in enumerate(blocks) for part in block.modules()}
    try:
        choose_attention(module, NAME, family)
        for part, mark in marks.items():
            setattr(part, MARK, mark)
        setattr(config, MARK, wiring)
        yield wiring
    finally:
        vars(config).pop(MARK, None)
        for part in marks:
            vars(part).pop(MARK, None)
        choose_attention(module, before, family)


def wiring_of(blocks: Sequence[nn.Module]) -> Wiring | None:
    """Return the wiring of a decoder; None if it is not wired."""
    mark: Mark | None = getattr(blocks[0], MARK, None)
    return mark.wiring if mark else None


def require_attention(wiring: Wiring, plan: MaskPlan, *, family: str) -> None:
    """Check after a forward call that every block which a plan converts asked for its mask (`DecoderError`).

    A block that did not is recurrent, or computes attention another way: it stays as it was trained.
    """
    n_blocks, silent = len(wiring.kinds), set(wiring.silent)
    converted = plan.converted_blocks(n_blocks)
    deaf = [block + 1 for block in sorted(silent & set(converted))]
    if not deaf:
        return
    kind = next(iter(converted.values()))
    others = [f"{kind}@{block + 1}-{block + 1}" for block in range(n_blocks) if block not in silent]
    why = (
        f"computes block {deaf[0]} without the attention that masks reach (recurrent, or past the library's interface)"
    )
    if not others:
        raise only_causal(family, why + ", as every block")
    works = parse_plan("+".join(others)).text
    raise DecoderError(
        f"the family {family!r} {why}, so it stays causal and the plan {plan.text!r} cannot be; a plan may convert the "
        f"other blocks alone, for instance {works!r}."
    )


def require_windows(wiring: Wiring, *, family: str) -> None:
    """Check after a forward call that no window is lost: some families put it into the mask alone, which ours replaces.

    Otherwise, `DecoderError`.
    """
    lost = sorted(wiring.asked_windows - set(wiring.windows.values()))
    if lost:
        why = f"does not pass its attention the window of {lost[0]} tokens, so a mask plan would lose it"
        raise only_causal(family, why)


def only_causal(family: str, why: str) -> DecoderError:
    """Build the error for a family that cannot be wired."""
    return DecoderError(f"the family {family!r} {why}; only the plan 'causal' works for it.")


def choose_attention(model: Any, name: str, family: str) -> None:
    """Select an attention implementation; `DecoderError` for a family that does not let it be chosen."""
    why = "does not go through the library's attention interface"
    if not model._can_set_attn_implementation():  # asked for anyway, the library would only warn
        if name == NAME:
            raise only_causal(family, why)
        model.config._attn_implementation_internal = name
        return
    try:
        model.set_attn_implementation(name)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise only_causal(family, f"does not let its attention be chosen ({str(error).splitlines()[0]})") from error
    if model.config._attn_implementation != name:
        raise only_causal(family, why)


def _register() -> None:
    """Enter our functions into the library's tables, once."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if NAME not in AttentionInterface._global_mapping:
        AttentionInterface.register(NAME, wired_attention)
        AttentionMaskInterface.register(NAME, no_mask)


# Masks for families past the attention interface: the plan's mask replaces the one their attention modules get.

ARGUMENT = "attention_mask"
HIDDEN = -6e4  # scores below are minus infinity, in float16 too
SOFTMAXES = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax)


@contextmanager
def wired_by_argument(
    module: nn.Module, blocks: Sequence[nn.Module], kinds: Sequence[str], *, family: str
) -> Iterator[Wiring]:
    """Wire a decoder as `interface.wired` does, through the mask argument of its attention modules.

    Raises:
        DecoderError: The family builds no causal mask, or none that this way knows.
    """
    wiring = Wiring([parse_kind(kind) for kind in kinds], by_argument=True)
    config: Any = module.config
    with ExitStack() as stack:
        stack.callback(choose_attention, module, config._attn_implementation, family)
        choose_attention(module, "eager", family)
        for index, block in enumerate(blocks):
            setattr(block, MARK, Mark(wiring, index))
            stack.callback(vars(block).pop, MARK, None)
            for part in _mask_takers(block):
                _hook(part, index, wiring, family, stack)
        yield wiring


def _mask_takers(part: nn.Module) -> Iterator[nn.Module]:
    """Find the outermost modules inside a block whose forward call takes a mask."""
    for child in part.children():
        if ARGUMENT in inspect.signature(child.forward).parameters:
            yield child
        else:
            yield from _mask_takers(child)


def _hook(part: nn.Module, block: int, wiring: Wiring, family: str, stack: ExitStack) -> None:
    """Replace the mask that a module is given, and open its triangles while it runs."""
    signature = inspect.signature(part.forward)
    triangles = [(owner, name, buffer) for owner in part.modules() for name, buffer in _triangles(owner)]

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = signature.bind(*args, **kwargs)
        own = call.arguments.get(ARGUMENT)
        if not isinstance(own, Tensor) or own.dim() != 4:  # of a recurrent block, or none
            return None
        call.arguments[ARGUMENT] = mask_argument(wiring, block, own, [each[2] for each in triangles], family=family)
        for owner, name, buffer in triangles:
            owner._buffers[name] = buffer.new_ones(()).expand(buffer.shape)
        wiring.attending = block
        wiring.carriers[block] = part
        return call.args, call.kwargs

    def after(*_: object) -> None:
        wiring.attending = None
        for owner, name, buffer in triangles:
            owner._buffers[name] = buffer

    stack.callback(after)
    stack.enter_context(part.register_forward_pre_hook(before, with_kwargs=True))
    stack.enter_context(part.register_forward_hook(after, always_call=True))


def _triangles(owner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in owner.named_buffers(recurse=False):
        is_square = buffer.dtype == torch.bool and buffer.dim() > 1 and buffer.shape[-1] == buffer.shape[-2] > 1
        if is_square and not bool(buffer.triu(1).any()):
            yield name, buffer


def mask_argument(
    wiring: Wiring, block: int, own: Shaped[Tensor, "b Q T T"], triangles: Sequence[Tensor], *, family: str
) -> Shaped[Tensor, "b 1 T T"]:
    """Write the mask of a block in the form of the family's own: 0 and minus infinity, or true where hidden (MPT).

    The window is read off the family's own mask and kept. Biases in it are dropped: Falcon adds its ALiBi once more by
    itself, and where nobody does, the decoder differs from the untouched one. `DecoderError` where it is not causal.
    """

    def shown() -> Tensor:
        seen = ~own if own.dtype == torch.bool else own > HIDDEN
        for triangle in triangles:
            seen = seen & triangle[..., : own.shape[-2], : own.shape[-1]]
        return seen

    mask = wiring.mask(block, wiring.window_of((own, *triangles), shown, family=family))
    allowed = wiring.placed(mask, own.device) if isinstance(mask, Tensor) else written_out(mask, own)
    hidden = ~allowed if own.dtype == torch.bool else additive(allowed, own.dtype)
    return hidden.expand(len(own), -1, -1, -1)


class ScoreWatch(TorchFunctionMode):
    """Shows what attention modules put into their softmax, mask and biases included, and what comes out of it.

    `see` gets the block's position, scores `(B, heads, T, T)` and weights of the same shape; learned sinks are cut off.
    """

    def __init__(self, wiring: Wiring, see: Callable[[int, Tensor, Tensor], None]) -> None:
        super().__init__()
        self._wiring, self._see = wiring, see

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        block, shape = self._wiring.attending, self._wiring.batch_shape
        if func in SOFTMAXES and block is not None:
            scores = args[0] if args else (kwargs or {})["input"]
            if scores.dim() > 2 and scores.shape[-2] == shape[1] <= scores.shape[-1] <= shape[1] + 1:
                whole = (shape[0], -1, *scores.shape[-2:])
                self._see(block, *(side.reshape(whole)[..., : shape[1]] for side in (scores, result)))
        return result
