"""One wiring for every decoder: a registered attention function that asks each block for its own mask.

transformers looks up by name which function computes attention and which one builds masks. Ours are registered as
`icecore`, the only global, and one decoder's configuration selects them. What is in force is an attribute of that
configuration and of the modules of the decoder's blocks until the `with` block ends. No class is copied, subclassed or
rebound, and other models of the process keep their attention. Families past that interface get the masks through the
mask argument of their attention modules. See docs/decisions/own-wiring.md.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from extract.decoders.decoder import changed
from extract.errors import DecoderError, first_line
from extract.inputs.batches import Batch
from extract.inputs.joined_text import CONTEXT
from extract.masks.mask_plan import CAUSAL_KIND, MaskKind, MaskPlan, parse_plan
from extract.masks.mask_rules import MaskCache, additive, batch_mask
from extract.poolings.memory import send

NAME = "icecore"
MARK = "_icecore_wiring"
"""Attribute of a wired decoder's configuration, and of every module of its blocks."""
SHORTCUTS = {"causal": "causal", "backward": "backward", "bidirectional": "none"}
"""Kinds that need no mask in memory in an unpadded batch."""
UNSUPPORTED = {
    "position_bias",
    "head_mask",
    "attention_sink",
    "sinks",
    "logit_softcapping",
    "alibi",
    "indices",
    "block_indices",
}
"""Options of attention layers that change the result and are not computed here: refused, never ignored."""
ARGUMENT = "attention_mask"
HIDDEN = -6e4
"""Scores below this are minus infinity, in float16 too."""
SOFTMAXES = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax)
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
"""Arguments of a module of transformers, of any type."""


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
    """Compute attention, for every family that goes through the library's attention interface.

    The mask is `(B or 1, 1, T, S)` bool, or `"none"`, `"causal"` or `"backward"` for an unpadded batch; `bias` is the
    same as what is added to scores, where it exists already. Scores are scaled by `H ** -0.5`, or `scaling`, and capped
    smoothly at `softcap` (Gemma 2); `sinks` are learned scores without a value, one per head (GPT-OSS).
    """
    value = _repeat_heads(value, query.shape[1])
    if softcap is not None or sinks is not None:
        weights = attention_weights(query, key, mask=mask, scaling=scaling, softcap=softcap, sinks=sinks)
        return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous()
    key = _repeat_heads(key, query.shape[1])
    if isinstance(mask, Tensor):
        bias = additive(mask, query.dtype) if bias is None else bias
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    elif mask == "backward":  # causal attention on the row read from its end
        query, key, value = query.flip(2), key.flip(2), value.flip(2)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).flip(2)
    else:
        mixed = scaled_dot_product_attention(query, key, value, is_causal=mask == "causal", scale=scaling)
    return mixed.transpose(1, 2).contiguous()


def prefix_last(
    key: Float[Tensor, "B K T H"], value: Float[Tensor, "B K T V"], mask: Tensor | str, last: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B K S H"], Float[Tensor, "B K S V"], Bool[Tensor, "b 1 T S"]]:
    """Prepend the key, rotated as it is, and the value of the `last` token of each row, which every query sees."""
    rows = torch.arange(len(last), device=last.device)
    table = written_out(mask, key.new_empty(1, 1, key.shape[2], key.shape[2]))
    mask = torch.cat([torch.ones_like(table[..., :1]), table], dim=-1)
    key, value = (torch.cat([side[rows, :, last].unsqueeze(2), side], dim=2) for side in (key, value))
    return key, value, mask


def _repeat_heads(x: Float[Tensor, "B K T H"], n_heads: int) -> Float[Tensor, "B Q T H"]:
    n_groups = n_heads // x.shape[1]
    return x.repeat_interleave(n_groups, dim=1) if n_groups > 1 else x


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


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of a block's attention, and its result."""

    module: nn.Module
    """The attention module."""
    query: Tensor
    """`(B, heads, T, H)`."""
    key: Tensor
    """`(B, key heads, T, H)`, without what a plan prepends."""
    value: Tensor
    """`(B, key heads, T, V)`, as the keys."""
    options: dict[str, Any]
    """What the module passed along, by transformers' names."""
    mask: Tensor | str
    """`(B or 1, 1, T, T)` bool, or the name of a shortcut."""
    mixed: Tensor
    """`(B, T, heads, V)`, the result."""

    def weights(self) -> Float[Tensor, "B Q T T"]:
        """Compute the attention weights under the mask in force, in float32."""
        return torch.cat(list(self.weights_by_key_head()), dim=1)

    def weights_by_key_head(self) -> Iterator[Float[Tensor, "B Q T T"]]:
        """Compute the weights of the heads that share a key head, one such group after the other."""
        scaling, softcap, sinks = (self.options.get(name) for name in ("scaling", "softcap", "s_aux"))
        n_groups = self.key.shape[1]
        for group, query in enumerate(self.query.chunk(n_groups, dim=1)):
            group_sinks = None if sinks is None else sinks.chunk(n_groups)[group]
            key = self.key[:, group : group + 1]
            yield attention_weights(query, key, mask=self.mask, scaling=scaling, softcap=softcap, sinks=group_sinks)


Watch = Callable[[int, AttentionCall], Tensor | None]
"""Receives a block's position and a call of its attention; a tensor that it returns replaces the result."""
Run = Callable[[Tensor], Tensor]
Around = Callable[[int, Tensor, Run], Tensor]
"""Runs a block that an architecture runs again: receives its position, its input and the run."""


@dataclass(eq=False)
class SharedPrefix:
    """Tokens that all rows of a batch begin with: inside its lower blocks, those of the first row stand for all.

    There the batch is one packed row, the shared tokens before the others of every row. A block treats each token by
    itself, except in attention, where the other tokens see the shared keys and values beside those of their own row.
    """

    n_tokens: int
    """Shared tokens at the beginning of every row."""
    n_blocks: int
    """Blocks, from the bottom, in which they see nothing but each other."""
    shape: tuple[int, int]
    """Rows and tokens of the batch."""
    last: tuple[Tensor | None, Tensor | None] = (None, None)
    """The output of the block before, as the batch and packed."""

    def pack(self, x: Shaped[Tensor, "b T *D"]) -> Shaped[Tensor, "1 N *D"]:
        """Pack what a batch has for each of its tokens, or one row for all rows."""
        full, packed = self.last
        if x is full and packed is not None:
            return packed
        others = x[:, self.n_tokens :].expand(self.shape[0], *(-1,) * (x.dim() - 1))
        return torch.cat([x[:1, : self.n_tokens], others.reshape(1, -1, *x.shape[2:])], dim=1)

    def split(self, x: Shaped[Tensor, "1 N *D"]) -> tuple[Shaped[Tensor, "1 P *D"], Shaped[Tensor, "B S *D"]]:
        """Split what is packed into the shared tokens and the others of every row."""
        return x[:, : self.n_tokens], x[0, self.n_tokens :].reshape(self.shape[0], -1, *x.shape[2:])

    def unpack(self, x: Shaped[Tensor, "1 N D"]) -> Shaped[Tensor, "B T D"]:
        """Write out the whole rows of what is packed."""
        first, others = self.split(x)
        full = torch.cat([first.expand(len(others), -1, -1), others], dim=1)
        self.last = full, x
        return full

    def attend(
        self,
        query: Float[Tensor, "1 Q N H"],
        key: Float[Tensor, "1 K N H"],
        value: Float[Tensor, "1 K N V"],
        *,
        mask: Bool[Tensor, "b 1 T T"],
        bias: Float[Tensor, "b 1 T T"],
        **options: Any,
    ) -> Float[Tensor, "1 N Q V"]:
        """Compute attention of packed rows, arguments as in `attend`."""
        n = self.n_tokens
        halves = ((part.transpose(1, 2) for part in self.split(x.transpose(1, 2))) for x in (query, key, value))
        (query, queries), (key, keys), (value, values) = halves
        keys, values = (
            torch.cat([first.expand(len(others), -1, -1, -1), others], dim=2)
            for first, others in ((key, keys), (value, values))
        )
        first = attend(query, key, value, mask=mask[:1, :, :n, :n], bias=bias[:1, :, :n, :n], **options)
        others = attend(queries, keys, values, mask=mask[:, :, n:], bias=bias[:, :, n:], **options)
        return torch.cat([first, others.flatten(0, 1).unsqueeze(0)], dim=1)


@dataclass(eq=False)
class WiredBatch:
    """The batch that a wired decoder is computing, with masks and copies that its blocks share."""

    is_real: Bool[Tensor, "B T"]
    is_padded: bool
    last: Int[Tensor, " B"]
    """Column of the token of each row that `last` reads, which may be an EOS token."""
    spans: Int[Tensor, "B T"] | None = None
    placeholder: Int[Tensor, " B"] | None = None
    """Column of each row's placeholder; None without one."""
    shared: SharedPrefix | None = None
    """While the batch runs: what its lower blocks compute once."""
    _masks: dict[tuple[MaskKind, int | None], Tensor | str] = field(default_factory=dict)
    # Keyed by `id`, with the tensors themselves in the values, so that no other tensor gets their `id`.
    _made: dict[tuple[int, torch.device | torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _family_windows: dict[tuple[int, ...], tuple[tuple[Tensor, ...], int | None]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and tokens."""
        return tuple(self.is_real.shape)

    def mask(self, kind: MaskKind, window: int | None, cache: MaskCache) -> Tensor | str:
        """Return the mask `(B or 1, 1, T, T)` of a kind under a sliding window, or the name of a shortcut."""
        window = None if window is None or window >= self.is_real.shape[1] else window
        key = kind, window
        if key not in self._masks:
            if kind.needs_spans:
                spans = torch.full_like(self.is_real, CONTEXT, dtype=torch.long) if self.spans is None else self.spans
                self._masks[key] = batch_mask(kind, self.is_real, spans=spans, window=window).unsqueeze(1)
            elif self.is_padded:
                self._masks[key] = batch_mask(kind, self.is_real, window=window).unsqueeze(1)
            elif kind.name in SHORTCUTS and window is None and (self.shared is None or kind != CAUSAL_KIND):
                self._masks[key] = SHORTCUTS[kind.name]
            else:
                self._masks[key] = cache.build(kind, self.is_real, window=window)
        return self._masks[key]

    def bias(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a mask of this batch as what is added to scores, made once for all blocks."""
        return self._once(mask, dtype, lambda: additive(mask, dtype))

    def on_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Return a mask or another tensor of this batch on the device of a block, copied there once."""
        return tensor if tensor.device == device else self._once(tensor, device, lambda: tensor.to(device))

    def _once(self, tensor: Tensor, form: torch.device | torch.dtype, make: Callable[[], Tensor]) -> Tensor:
        key = id(tensor), form
        if key not in self._made:
            self._made[key] = tensor, make()
        return self._made[key][1]

    def family_window(self, mask: Tensor, triangles: Sequence[Tensor], *, family: str) -> int | None:
        """Read the window off a family's own mask, in tokens; `DecoderError` where it is not causal within one."""
        masks = mask, *triangles
        key = tuple(map(id, masks))
        if key in self._family_windows:  # those of another block
            return self._family_windows[key][1]
        allowed = ~mask if mask.dtype == torch.bool else mask > HIDDEN
        for triangle in triangles:
            allowed = allowed & triangle[..., : mask.shape[-2], : mask.shape[-1]]
        is_real = self.on_device(self.is_real, allowed.device)
        order = is_real.long().cumsum(1) - 1
        distance = (order.unsqueeze(2) - order.unsqueeze(1)).unsqueeze(1)
        pairs = (is_real.unsqueeze(2) & is_real.unsqueeze(1)).unsqueeze(1)
        outside = distance[pairs & (distance >= 0) & ~allowed.any(1, keepdim=True)]
        window = int(outside.min()) if len(outside) else None
        causal = (distance >= 0) & (distance < (window or order.shape[1]))
        if bool(((allowed ^ causal) & pairs).any()):
            raise only_causal(family, "gives its blocks masks that are not causal")
        self._family_windows[key] = masks, window
        return window


@dataclass(eq=False)
class WiredPlan:
    """What the plan in force asks of attention."""

    kinds: list[MaskKind]
    """Mask kind per block, bottom up."""
    is_forced: bool = False
    """Whether every run of a block attends under its kind from `kinds`, even one that an architecture adds."""
    prefixed: range = range(0)
    """Blocks, from 0, in which the last token's key and value are prepended."""
    prepends: bool = False
    """Whether rows have a placeholder that takes the last token's state."""


@dataclass(eq=False)
class Wiring:
    """One wired decoder: the plan in force, the batch that is being computed, and what its blocks have shown so far."""

    plan: WiredPlan
    family: str = ""
    by_argument: bool = False
    """Whether masks go into the mask argument of the attention modules, not through the interface."""
    batch: WiredBatch | None = None
    """None between batches, when a forward call is refused."""
    calls: list[int] = field(default_factory=list)
    """How often each block has asked for its mask since the last batch began."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """Sliding window of each block that has asked, in tokens; None for none."""
    requested_windows: set[int] = field(default_factory=set)
    """Windows for which the decoder asked transformers to build a mask, in tokens."""
    carriers: dict[int, nn.Module] = field(default_factory=dict)
    """The attention module of each block that has asked for its mask."""
    attending: int | None = None
    """Position of the block whose attention module runs, where masks go into its argument."""
    proved: set[tuple[int, str, bool, tuple[int, int]]] = field(default_factory=set)
    """Calls whose attention has been proved at some shape: block, kind, whether run again, rows and tokens."""
    n_sharing: int = 0
    """Blocks, from the bottom, of which it is proved that rows may share the tokens they begin with."""
    only_shares: bool = False
    """Whether a decoder that the plan leaves alone is wired for that and nothing else."""
    shared: SharedPrefix | None = None
    """What rows of the last batch shared."""
    watch: Watch | None = None
    around: Around = lambda _, hidden, run: run(hidden)
    _masks: MaskCache = field(default_factory=MaskCache)

    @property
    def silent(self) -> list[int]:
        """Positions of the blocks that have not asked for a mask in the last batch: recurrent ones."""
        return [block for block, n_calls in enumerate(self.calls) if n_calls == 0]

    @property
    def current(self) -> WiredBatch:
        """The batch that is being computed; `DecoderError` between batches."""
        if self.batch is None:
            raise DecoderError("a wired decoder was called on its own; run it through icecore, which begins a batch.")
        return self.batch

    def begin(self, batch: Batch, device: torch.device) -> None:
        """Begin a batch, whose inputs go to a device."""
        self.batch = WiredBatch(
            send(batch.is_real, device),
            batch.is_padded,
            send(batch.last, device),
            None if batch.spans is None else send(batch.spans, device),
            None if batch.placeholder is None else send(batch.placeholder, device),
        )
        self.calls, self.shared = [0] * len(self.plan.kinds), None

    def end(self) -> None:
        """End a batch: until the next one begins, a forward call is refused."""
        self.batch = None

    def mask(self, block: int, window: int | None) -> Tensor | str:
        """Return the mask of a block for the current batch under its sliding window in tokens, as `WiredBatch.mask`."""
        batch = self.current
        self.calls[block] += 1
        self.windows[block] = window
        return batch.mask(self.plan.kinds[block], window, self._masks)

    def converted(self, block: int, kind: MaskKind) -> AbstractContextManager[None]:
        """Set another kind for one block until the `with` block ends, unless kinds are forced."""
        kinds = [kind if index == block else before for index, before in enumerate(self.plan.kinds)]
        return changed(self.plan, kinds=self.plan.kinds if self.plan.is_forced else kinds)

    def all_as(self, kind: MaskKind) -> AbstractContextManager[None]:
        """Let every run of every block attend under one kind until the `with` block ends."""
        return changed(self, plan=replace(self.plan, kinds=[kind] * len(self.plan.kinds), is_forced=True))

    def watched(self, watch: Callable[[int, AttentionCall], None]) -> AbstractContextManager[None]:
        """Watch attention until the `with` block ends, after any earlier watch, which may replace the result."""
        before = self.watch

        def both(block: int, call: AttentionCall) -> Tensor | None:
            result = None if before is None else before(block, call)
            watch(block, call if result is None else replace(call, mixed=result))
            return result

        return changed(self, watch=both)

    def windows_apart(self) -> AbstractContextManager[None]:
        """Forget, when the `with` block ends, the windows that were seen inside it."""
        return changed(self, windows=dict(self.windows), requested_windows=set(self.requested_windows))


class Mark(NamedTuple):
    """The mark on a module of a wired decoder."""

    wiring: Wiring
    block: int


def wired_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention under the mask of the block that asks; `DecoderError` for options not computed here."""
    mark: Mark | None = getattr(module, MARK, None)
    if mark is None:
        raise DecoderError(
            f"a {type(module).__name__} that was never wired is called with our attention: it shares its configuration "
            "object with a decoder that is. Give each model a configuration of its own."
        )
    unsupported = sorted(name for name in UNSUPPORTED if options.get(name) is not None)
    if attention_mask is not None:  # `no_mask` gave the decoder none
        unsupported.append("a mask of its own making")
    if unsupported:
        raise DecoderError(
            f"attention of {type(module).__name__} uses {', '.join(unsupported)}, which mask plans do not support; "
            "only the plan 'causal' works for this decoder."
        )
    wiring, block = mark
    wiring.carriers[block] = module
    mask, batch = wiring.mask(block, options.get("sliding_window")), wiring.current
    if isinstance(mask, Tensor):
        mask = batch.on_device(mask, query.device)
    scaling, softcap, sinks = (options.get(name) for name in ("scaling", "softcap", "s_aux"))
    if batch.shared is not None and block < batch.shared.n_blocks:
        assert isinstance(mask, Tensor), "the mask of a batch that shares a prefix is written out"
        shared_bias, how = batch.bias(mask, query.dtype), {"scaling": scaling, "softcap": softcap, "sinks": sinks}
        return batch.shared.attend(query, key, value, mask=mask, bias=shared_bias, **how), None
    keys, values, visible, bias = key, value, mask, None
    if block in wiring.plan.prefixed:
        keys, values, visible = prefix_last(key, value, mask, batch.on_device(batch.last, key.device))
    elif isinstance(mask, Tensor) and softcap is None and sinks is None:
        bias = batch.bias(mask, query.dtype)
    mixed = attend(query, keys, values, mask=visible, scaling=scaling, softcap=softcap, sinks=sinks, bias=bias)
    if wiring.watch is not None:
        result = wiring.watch(block, AttentionCall(module, query, key, value, options, mask, mixed))
        mixed = mixed if result is None else result
    return mixed, None


def no_mask(*_: object, config: PreTrainedConfig | None = None, local_size: int | None = None, **__: object) -> None:
    """Replace the mask builder of transformers, since the plan provides the masks; note the windows asked for."""
    wiring: Wiring | None = getattr(config, MARK, None)
    is_windowed = set(getattr(config, "layer_types", None) or ("windowed",)) != {"full_attention"}
    if wiring is not None and local_size is not None and is_windowed:
        wiring.requested_windows.add(local_size)


@contextmanager
def wired(
    module: PreTrainedModel,
    blocks: Sequence[nn.Module],
    kinds: Sequence[MaskKind],
    *,
    family: str,
    by_argument: bool = False,
) -> Iterator[Wiring]:
    """Wire a decoder without its head until the `with` block ends, and restore it; `DecoderError` where that fails.

    Masks go through the library's attention interface, or `by_argument` into that of its attention modules. `begin` of
    the wiring must be called before each forward call.
    """
    if NAME not in AttentionInterface._global_mapping:
        AttentionInterface.register(NAME, wired_attention)
        AttentionMaskInterface.register(NAME, no_mask)
    wiring = Wiring(WiredPlan(list(kinds)), family, by_argument)
    with ExitStack() as stack:
        stack.callback(choose_attention, module, module.config._attn_implementation, family)
        choose_attention(module, "eager" if by_argument else NAME, family)
        marks: list[tuple[object, Wiring | Mark]] = [(module.config, wiring)]
        for index, block in enumerate(blocks):
            marks += [(part, Mark(wiring, index)) for part in block.modules()]
            for part in _mask_takers(block) if by_argument else ():
                _hook(part, index, wiring, stack)
        for owner, mark in marks:
            setattr(owner, MARK, mark)
            stack.callback(vars(owner).pop, MARK, None)
        yield wiring


def wiring_of(blocks: Sequence[nn.Module]) -> Wiring | None:
    """Return the wiring of a decoder; None if it is not wired."""
    mark: Mark | None = getattr(blocks[0], MARK, None)
    return mark.wiring if mark else None


def require_attention(wiring: Wiring, plan: MaskPlan) -> None:
    """Check after a forward call that every block which a plan converts asked for its mask (`DecoderError`)."""
    n_blocks, silent = len(wiring.plan.kinds), set(wiring.silent)
    converted = plan.converted_blocks(n_blocks)
    unreached = sorted(silent & set(converted))
    if not unreached:
        return
    why = (
        f"computes block {unreached[0] + 1} without the attention that masks reach (recurrent, or past the library's "
        "interface)"
    )
    if len(silent) == n_blocks:
        raise only_causal(wiring.family, why + ", as every block")
    kind = next(iter(converted.values()))
    others = [f"{kind}@{block + 1}-{block + 1}" for block in range(n_blocks) if block not in silent]
    works = parse_plan("+".join(others)).text
    raise DecoderError(
        f"the family {wiring.family!r} {why}, so it stays causal and the plan {plan.text!r} cannot be; a plan may "
        f"convert the other blocks alone, for instance {works!r}."
    )


def require_windows(wiring: Wiring) -> None:
    """Check after a forward call that no window is lost, as of families that put it into the mask alone."""
    lost = sorted(wiring.requested_windows - set(wiring.windows.values()))
    if lost:
        why = f"does not pass its attention the window of {lost[0]} tokens, so a mask plan would lose it"
        raise only_causal(wiring.family, why)


def only_causal(family: str, why: str) -> DecoderError:
    """Build the error for a family that cannot be wired."""
    return DecoderError(f"the family {family!r} {why}; only the plan 'causal' works for it.")


def choose_attention(model: PreTrainedModel, name: str, family: str) -> None:
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
        raise only_causal(family, f"does not let its attention be chosen ({first_line(error)})") from error
    if model.config._attn_implementation != name:
        raise only_causal(family, why)


def _mask_takers(part: nn.Module) -> Iterator[nn.Module]:
    """Find the outermost modules inside a block whose forward call takes a mask."""
    for child in part.children():
        if ARGUMENT in inspect.signature(child.forward).parameters:
            yield child
        else:
            yield from _mask_takers(child)


def _hook(part: nn.Module, block: int, wiring: Wiring, stack: ExitStack) -> None:
    """Replace the mask argument of a module, and open its triangles while it runs."""
    signature = inspect.signature(part.forward)
    triangles = [(owner, name, buffer) for owner in part.modules() for name, buffer in _triangles(owner)]

    def before(_: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords] | None:
        call = signature.bind(*args, **kwargs)
        mask = call.arguments.get(ARGUMENT)
        if not isinstance(mask, Tensor) or mask.dim() != 4:  # of a recurrent block, or none
            return None
        call.arguments[ARGUMENT] = mask_argument(wiring, block, mask, [buffer for *_, buffer in triangles])
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
    wiring: Wiring, block: int, family_mask: Shaped[Tensor, "b Q T T"], triangles: Sequence[Tensor]
) -> Shaped[Tensor, "b 1 T T"]:
    """Write the mask of a block in the form of the family's own: 0 and minus infinity, or true where hidden (MPT).

    The window of the family's own mask is respected. Biases in it are dropped: Falcon adds its ALiBi once more by
    itself, and where nobody does, the decoder differs from the untouched one. `DecoderError` where it is not causal.
    """
    batch = wiring.current
    mask = wiring.mask(block, batch.family_window(family_mask, triangles, family=wiring.family))
    allowed = batch.on_device(mask, family_mask.device) if isinstance(mask, Tensor) else written_out(mask, family_mask)
    hidden = ~allowed if family_mask.dtype == torch.bool else additive(allowed, family_mask.dtype)
    return hidden.expand(len(family_mask), -1, -1, -1)


class ScoreWatch(TorchFunctionMode):
    """Shows what attention modules put into their softmax, mask and biases included, and what comes out of it.

    `see` gets the block's position, scores `(B, heads, T, T)` and weights of the same shape; learned sinks are cut off.
    """

    def __init__(self, wiring: Wiring, see: Callable[[int, Tensor, Tensor], None]) -> None:
        super().__init__()
        self._wiring, self._see = wiring, see

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        block = self._wiring.attending
        if func in SOFTMAXES and block is not None:
            n_rows, n_tokens = self._wiring.current.shape
            scores = args[0] if args else kwargs["input"]
            if scores.dim() > 2 and scores.shape[-2] == n_tokens <= scores.shape[-1] <= n_tokens + 1:
                shape = (n_rows, -1, *scores.shape[-2:])
                self._see(block, *(tensor.reshape(shape)[..., :n_tokens] for tensor in (scores, result)))
        return result
