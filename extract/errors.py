"""The errors a user can meet, each one sentence: what was wrong, the value, what is allowed, what to do next."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}

NAME_COLUMN = "Name the column of the texts: `column`, or --column on the command line."
"""What else to do where a table has no column `text`."""


class IcecoreError(Exception):
    """Base of every error that the user can fix; its text is a sentence for a person."""


class UnknownNameError(IcecoreError):
    """An unknown name (decoder, plan, layer, pooling, task, head, key, column)."""


class DecoderError(IcecoreError):
    """A decoder that cannot be found, loaded or wired."""


class FetchError(DecoderError):
    """A known decoder that neither the hub nor the package index provided."""


class InputError(IcecoreError):
    """A text or template that cannot be turned into tokens to pool over."""


class TaskError(IcecoreError):
    """Task rows that cannot be read or used as they are."""


class ConfigError(IcecoreError):
    """A configuration that contradicts itself or a value of the wrong kind."""


class CodeError(IcecoreError):
    """Code that a file names, and that the user did not allow, or that is not as it was recorded."""


class UsageError(ConfigError):
    """A command line that cannot be read."""


class CacheError(IcecoreError):
    """A file that cannot be read as a latent cache."""


class CacheIdentityError(CacheError):
    """A cache that holds something other than what the reader expects."""


class CacheIncompleteError(CacheError):
    """A half-done cache where a complete one is needed."""


class CacheLockedError(CacheError):
    """A cache that another process is writing."""


class DiskFullError(CacheError):
    """No space left for the cache; what was written stays and can be resumed."""


class NonFiniteLatentError(IcecoreError):
    """A latent that is NaN or infinite, or overflows the storage dtype."""


class CertificateError(IcecoreError):
    """An extraction whose masks, batches or weights did not behave as promised."""


class CacheWarning(UserWarning):
    """A file in a folder of caches that was passed over; its text is a sentence for a person."""


class ConfigWarning(UserWarning):
    """A path of a configuration that is not where it is read from; its text is a sentence for a person."""


class CodeWarning(UserWarning):
    """Code that is imported without a digest to compare it with; its text is a sentence for a person."""


class TruncationWarning(UserWarning):
    """Texts that were longer than the longest row; its text is a sentence for a person."""


class HeadError(IcecoreError):
    """A head that cannot be fitted, saved or loaded as asked."""


@contextmanager
def without_panics() -> Iterator[None]:
    """Turn a panic of a tokenizer, which is no `Exception`, into an `InputError`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(
            f"the tokenizer cannot be run ({first_line(error)}); use a decoder of people you trust, or repair its "
            "tokenizer.json."
        ) from error


def unknown_name(kind: str, value: object, allowed: Iterable[str], *, hint: str = "") -> UnknownNameError:
    """Build the error for an unknown name: it names the value, the nearest match and all allowed names.

    `kind` is what the name should be, as a noun; `hint` is what else to do, as a sentence.

    Example:
        >>> str(unknown_name("pooling", "meen", ["last", "mean"]))
        "unknown pooling 'meen': did you mean 'mean'? Allowed: last, mean."
    """
    names = list(allowed)
    near = get_close_matches(str(value), names, n=1, cutoff=0.5)
    guess = f": did you mean {near[0]!r}?" if near else "."
    tail = f" {hint}" if hint else ""
    return UnknownNameError(f"unknown {kind} {value!r}{guess} Allowed: {', '.join(names) or '(none)'}.{tail}")


def require_name(kind: str, value: object, allowed: Collection[str], *, hint: str = "") -> None:
    """Refuse a name that is not allowed; arguments as of `unknown_name`."""
    if value not in allowed:
        raise unknown_name(kind, value, allowed, hint=hint)


def require_counts(options: object, *names: str, least: int = 1, error: type[IcecoreError] = HeadError) -> None:
    """Refuse options that are below the least count."""
    for name in names:
        if getattr(options, name) < least:
            raise error(f"{name} is {getattr(options, name)}; allowed: a whole number of at least {least}.")


def looked_in(path: str | Path) -> str:
    """Say where a relative path was looked for, as the end of a sentence; nothing of an absolute one or an address."""
    is_elsewhere = Path(path).is_absolute() or "://" in str(path)
    return "" if is_elsewhere else f"; it was looked for in {str(Path.cwd())!r}"


def printable(text: str) -> str:
    r"""Leave out what would command a terminal: all control characters but tabs and line breaks.

    Example:
        >>> printable("ice\x1b[2J")
        'ice[2J'
    """
    return text.translate(_CONTROLS)


def first_line(error: BaseException) -> str:
    """Cut a foreign error to what fits in a sentence: its type and at most 200 characters of its first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".removesuffix(": ").rstrip(".")
