"""Execute one notebook in a fresh kernel and measure it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

CELL_SECONDS = 180
# Offline, and without chatter on stderr.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "PYTHONHASHSEED": "0",
}
# The kernel's own peak plus the largest of the processes it started; where `resource` is missing, psutil's peak.
PEAK = """\
def _peak_mb():
    import sys
    try:
        import resource
    except ImportError:
        import psutil
        return psutil.Process().memory_info().peak_wset / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(peaks) * unit / 1e6
print(_peak_mb())
"""


@dataclass(frozen=True)
class Usage:
    """What one run took: wall seconds, peak resident memory in MB, and the error that ended it, if any."""

    seconds: float
    peak_mb: float
    error: str | None = None


def execute(notebook: NotebookNode, folder: Path) -> Usage:
    """Fill `notebook` with the outputs of a run in `folder`; an error in a cell is returned, not raised."""
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        extra_arguments=["--log-level=40"],
    )
    started = time.perf_counter()
    peak, error = 0.0, None
    with client.setup_kernel(env={**os.environ, **QUIET}):
        try:
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
            seconds = time.perf_counter() - started
            peak = measure_peak(client)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as failure:
            seconds, error = time.perf_counter() - started, str(failure)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    return Usage(seconds, peak, error)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs with neighbouring pieces of one stream made one; text and figures stay in the order they came in."""
    result: list[NotebookNode] = []
    for output in outputs:
        last = result[-1] if result else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            result.append(output)
    return result


def measure_peak(client: NotebookClient) -> float:
    """Ask the running kernel for its peak memory in MB."""
    cells = client.nb.cells
    cells.append(nbformat.v4.new_code_cell(PEAK))  # the client executes only cells of its notebook
    try:
        client.execute_cell(cells[-1], len(cells) - 1, store_history=False)
        return float(cells[-1].outputs[0]["text"])
    finally:
        cells.pop()
