"""Files that come with icecore beside its code: inside the packages of a wheel, at the top of a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def shipped(name: str) -> Path:
    """Return the path of a shipped file or folder."""
    inside = PACKAGE / name
    return inside if inside.exists() else PACKAGE.parent / name


def shipped_configs() -> dict[str, Path]:
    """Find the shipped configs by name, as `demo` or `freeze/siamese`."""
    folder = shipped("configs")
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
