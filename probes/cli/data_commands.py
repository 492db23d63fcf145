"""Commands on files of data, which load no torch: init."""

import sys
from pathlib import Path

from extract.errors import ConfigError, UsageError, printable
from extract.files import write_file
from probes.cli.commands import InitArgs
from probes.runs.config_file import ROLES, config_of_data, dump_config, read_data


def init_command(args: InitArgs) -> int:
    """Write the configuration that a file of data stands for."""
    roles = {name: getattr(args, name) for name in ROLES if getattr(args, name)}
    data = read_data(args.file, roles)
    if data is None:
        raise UsageError(f"{args.file!r} is no file of data; allowed: CSV, TSV, JSON Lines, Parquet, CoNLL or CoNLL-U.")
    path = Path(args.out or f"{config_of_data(data)['name']}.yaml")
    text = dump_config(data, path)
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise ConfigError(f"{str(path)!r} is there already; remove it, or name another file with --out.")
    write_file(path, text)
    sys.stdout.write(printable(f"{data}\nwritten: {path}; run it: icecore run {path}\n"))
    return 0
