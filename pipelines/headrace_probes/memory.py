"""STREAM: speed of memory reads and writes with PyTorch, on the CPU and on each GPU.

The four loops and their counts are those of J. McCalpin's benchmark,
https://www.cs.virginia.edu/stream/ref.html. If the node has a C compiler, its triad is also
compiled and run there, and the ratio of the two is reported.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch.utils.benchmark import Timer

from headrace.files.machine import available_memory_bytes
from headrace_probes.arithmetic import devices
from headrace_probes.limits import gpu_peak
from headrace_probes.probe_records import Findings, Measurement, ProbeRequest

_WORD = 8
_ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
"""Arrays that each loop reads or writes; reads that a write causes do not count."""

_LOOPS = {
    "copy": "c.copy_(a)",
    "scale": "torch.mul(c, 3.0, out=b)",
    "add": "torch.add(a, b, out=c)",
    "triad": "torch.add(b, c, alpha=3.0, out=a)",
}
_C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(int argc, char **argv) {
    long n = atol(argv[1]), repeats = atol(argv[2]);
    double *a = malloc(8 * n), *b = malloc(8 * n), *c = malloc(8 * n);
    if (!a || !b || !c) return 1;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) { a[i] = 1; b[i] = 2; c[i] = 0.5; }
    for (long r = 0; r <= repeats; r++) {
        double start = now();
        #pragma omp parallel for
        for (long i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
        double took = now() - start;
        if (r) printf("%.9f\n", took);
    }
    return a[n / 2] == 3.5 ? 0 : 2;
}
"""
_COMPILE_S = 120


def measure(request: ProbeRequest) -> Findings:
    """Measure the GB/s of each loop."""
    found: list[Measurement] = []
    notes: list[str] = []
    for device in devices():
        num_words = _num_words(request, device)
        found += [_loop(request, device, name, num_words) for name in _LOOPS]
    num_words = _num_words(request, "cpu")
    try:
        seconds = _in_c(request, num_words)
    except (OSError, subprocess.SubprocessError) as error:
        return Findings(
            measurements=tuple(found), notes=(f"{request.node}: no STREAM in C: {error}",)
        )
    (own,) = (each for each in found if each.name == "triad on cpu")
    by_c = _made(request, "triad in C on cpu", num_words, _ARRAYS["triad"], seconds)
    ratio = median(own.values) / median(by_c.values)
    notes.append(f"{request.node}: triad by PyTorch is {ratio:.2f} of that compiled from C")
    return Findings(measurements=(*found, by_c), notes=tuple(notes))


def _num_words(request: ProbeRequest, device: str) -> int:
    """Return the length of each of the three arrays: fixed, or less if memory is small."""
    wanted = (64 if request.options.quick else 128) * 2**20 // _WORD  # caches hold 32 MiB and more
    if device != "cpu":
        return wanted * 4
    return min(wanted, available_memory_bytes() // 12 // _WORD)


def _loop(request: ProbeRequest, device: str, name: str, num_words: int) -> Measurement:
    arrays = {
        letter: torch.full((num_words,), value, dtype=torch.float64, device=device)
        for letter, value in (("a", 1.0), ("b", 2.0), ("c", 0.5))
    }
    timer = Timer(_LOOPS[name], globals={"torch": torch, **arrays}, num_threads=request.cores)
    timer.timeit(1)  # warm-up
    seconds = [float(timer.timeit(1).mean) for _ in range(request.options.repeats)]
    made = _made(request, f"{name} on {device}", num_words, _ARRAYS[name], seconds)
    peak = gpu_peak(torch.cuda.get_device_name(device), "memory") if device != "cpu" else None
    if peak is None:
        return made
    return made.model_copy(update={"limit": peak[0], "limit_source": peak[1]})


def _made(
    request: ProbeRequest, name: str, num_words: int, arrays: int, seconds: Sequence[float]
) -> Measurement:
    threads = f", {request.cores} threads" if name.endswith("cpu") else ""
    return Measurement(
        part="memory",
        name=name,
        settings=f"3 arrays of {num_words * _WORD / 2**20:.0f} MiB{threads}",
        unit="GB/s",
        values=tuple(arrays * num_words * _WORD / each / 1e9 for each in seconds),
        node=request.node,
    )


def _in_c(request: ProbeRequest, num_words: int) -> tuple[float, ...]:
    """Compile and run the triad; return the seconds of each repeat.

    Raises:
        OSError: There is no compiler.
        subprocess.SubprocessError: The compiler, or the program, failed.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("there is no C compiler (cc)")
    with tempfile.TemporaryDirectory(prefix="headrace-stream-") as folder:
        source, program = Path(folder, "stream.c"), Path(folder, "stream")
        source.write_text(_C)
        native = "-mcpu" if platform.machine() == "ppc64le" else "-march"  # gcc has no -march there
        options = ("-O3", f"{native}=native", "-fopenmp")
        _run(compiler, *options, str(source), "-o", str(program))
        output = _run(
            "env",
            f"OMP_NUM_THREADS={request.cores}",
            str(program),
            str(num_words),
            str(request.options.repeats),
        )
    return tuple(float(line) for line in output.split())


def _run(*command: str) -> str:
    ended = subprocess.run(command, check=True, timeout=_COMPILE_S, text=True, capture_output=True)
    return ended.stdout
