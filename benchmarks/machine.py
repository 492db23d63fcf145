"""What a benchmark ran on, for its JSON."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil
import torch

from probes.runs.folder import describe_program

CPU = Path("/proc/cpuinfo")


def describe_machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Describe the device, the processor, its cores and memory, and the program with its versions."""
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else threads()
    return {
        "device": name,
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        **describe_program(),
    }


def processor() -> str:
    """Name the processor, by family and model too where the system tells them: names alone do not tell generations."""
    lines = CPU.read_text(encoding="utf-8") if CPU.exists() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+)$", lines, re.MULTILINE))
    if len(found) < 3:
        return platform.processor()
    return f"{found['model name'].strip()} (family {found['cpu family']}, model {found['model']})"


def threads() -> str:
    """Name the CPU with the threads that this process computes with."""
    n_threads = torch.get_num_threads()
    return f"cpu, {n_threads} thread{'s' if n_threads > 1 else ''}"
