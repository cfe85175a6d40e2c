"""The most that hardware can give, by what the kernel and data sheets tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_probes.limits import Cpu, cpu_of, cpu_peak, gpu_peak
from headrace_probes.probe_records import ProbeOptions, ProbeRequest

SERVER = Cpu(model="a server", cores=8, hertz=2.5e9, flags=frozenset({"avx2", "avx512f"}))

CPUINFO = """\
processor\t: 0
model name\t: A Server
cpu MHz\t\t: 2000.000
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2

processor\t: 1
model name\t: A Server
cpu MHz\t\t: 2600.000
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2

processor\t: 2
model name\t: A Server
cpu MHz\t\t: 3000.000
physical id\t: 0
core id\t\t: 1
flags\t\t: fpu avx2
"""


def test_processors_of_one_core_count_once_and_others_not_at_all():
    cpu = cpu_of(CPUINFO, {0, 1})
    assert cpu == Cpu(model="A Server", cores=1, hertz=2.6e9, flags=frozenset({"fpu", "avx2"}))
    assert cpu_of(CPUINFO, {0, 1, 2}).cores == 2
    assert cpu_of(CPUINFO, {0}, max_khz=3.5e6).hertz == 3.5e9


def test_a_kernel_that_tells_little_gives_no_limit():
    power = cpu_of("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", {0})
    assert (power.model, power.cores) == ("POWER9, altivec supported", 1)
    assert cpu_peak(power, "fp32", 1) is None
    assert cpu_peak(SERVER._replace(hertz=0.0), "fp32", 1) is None


@pytest.mark.parametrize(
    ("flags", "dtype", "gflops"),
    [
        ({"avx2"}, "fp32", 8 * 2.5 * 32),
        ({"avx2", "avx512f"}, "fp32", 8 * 2.5 * 64),
        ({"avx512f", "avx512_bf16"}, "bf16", 8 * 2.5 * 128),
        ({"avx512f", "amx_bf16"}, "bf16", 8 * 2.5 * 1024),
    ],
)
def test_cores_clock_lanes_and_units_make_the_limit(flags, dtype, gflops):
    peak = cpu_peak(SERVER._replace(flags=flags), dtype, 8)
    assert peak[0] == pytest.approx(gflops)
    assert peak[1].startswith("estimate: 8 cores x 2.50 GHz")


def test_fewer_threads_than_cores_can_give_less_and_more_threads_no_more():
    two, many = cpu_peak(SERVER, "fp32", 2), cpu_peak(SERVER, "fp32", 64)
    assert many[0] == 4 * two[0]


def test_bf16_without_instructions_for_it_has_no_limit():
    assert cpu_peak(SERVER, "bf16", 8) is None


@pytest.mark.parametrize(
    ("name", "what", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "fp32", 67_000),
        ("NVIDIA H100 PCIe", "bf16", 756_000),
        ("NVIDIA H200", "memory", 4800),
        ("NVIDIA A100-SXM4-40GB", "memory", 1555),
        ("NVIDIA A100-SXM4-80GB", "memory", 2039),
    ],
)
def test_data_sheets_tell_of_gpus(name, what, value):
    peak = gpu_peak(name, what)
    assert peak[0] == value
    assert "data sheet" in peak[1]


def test_an_unknown_gpu_has_no_limit():
    assert gpu_peak("Voodoo 2", "fp32") is None
    assert gpu_peak("Tesla V100-SXM2-16GB", "bf16") is None


def test_the_link_of_an_interface_tells_its_speed(tmp_path: Path):
    from headrace_probes.network import link_gb_per_s

    for name, speed in (("eth0", "100000\n"), ("down", "-1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    assert link_gb_per_s("eth0", tmp_path) == 12.5
    assert link_gb_per_s("down", tmp_path) is None
    assert link_gb_per_s("lo", tmp_path) is None
    assert link_gb_per_s(None, tmp_path) is None


@pytest.mark.parametrize(("gpus", "on_gpus"), [(0, False), (1, False), (2, True), (8, True)])
def test_ranks_use_gpus_all_or_none_of_them(
    monkeypatch: pytest.MonkeyPatch, gpus: int, on_gpus: bool
):
    """Else some would wait for others by NCCL, which wait for them by gloo."""
    from headrace_probes.network import has_gpus

    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    ranks = [
        ProbeRequest(part="train", options=ProbeOptions(), local_rank=rank, ranks_per_node=2)
        for rank in range(2)
    ]
    assert [has_gpus(each) for each in ranks] == [on_gpus, on_gpus]


def test_the_loops_of_stream_compute_what_they_are_named_for():
    import torch

    from headrace_probes.memory import _LOOPS

    a, b, c = (torch.full((3,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.5))
    for name in ("copy", "scale", "add", "triad"):
        exec(_LOOPS[name], {"torch": torch, "a": a, "b": b, "c": c})
    # c = a = 1; b = 3 c = 3; c = a + b = 4; a = b + 3 c = 15
    assert (a[0], b[0], c[0]) == (15.0, 3.0, 4.0)


def test_arrays_of_stream_have_one_size_wherever_there_is_memory():
    from headrace_probes.memory import _num_words

    request = ProbeRequest(part="memory", options=ProbeOptions())
    assert _num_words(request, "cpu") * 8 <= 128 * 2**20
