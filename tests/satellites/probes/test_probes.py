"""Storage with and without fio, statistics of nodes, limits of hardware, requests to probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StepError
from headrace.recipe.load import load_site
from headrace.recipe.site import Tier
from headrace.runs.runs import RunRequest
from headrace.states import StepState
from headrace.steps.step_kinds import StepOptions
from headrace_foresight.prediction import predict
from headrace_probes.limits import Cpu, cpu_of, cpu_peak, gpu_peak
from headrace_probes.on_node import NodeJob, _targets
from headrace_probes.probe_records import (
    Findings,
    Measurement,
    ProbedFolder,
    ProbeOptions,
    ProbeRecord,
    ProbeRequest,
)
from headrace_probes.report_html import report_of_comparison
from headrace_probes.statistics import (
    Probed,
    compared,
    efficiency,
    side_by_side,
    spread_of,
    summaries,
)
from headrace_probes.storage import fio_command, measure, rate_of
from support.runs import attempt_row_of, lease_on_disk, make_run

REAL = (Path(__file__).parent / "fio-3.33.json").read_text()
"""What fio 3.33 printed of random reads, less its tables; a line of a warning is put before it."""


def test_rates_are_read_from_what_fio_prints():
    assert rate_of(REAL, "randread") == pytest.approx(11636.363636)
    assert rate_of(REAL, "read") == 47662545
    assert rate_of(REAL, "write") == 0


@pytest.mark.parametrize("output", ["", "fio: no such engine", '{"jobs": []}', '{"jobs": [{}]}'])
def test_what_is_no_output_of_fio_is_told(output):
    with pytest.raises(StepError, match="fio's output cannot be read"):
        rate_of(output, "read")


def test_an_error_of_fio_is_told():
    failed = json.loads(REAL[REAL.index("{") :])
    failed["jobs"][0]["error"] = 28
    with pytest.raises(StepError, match="error 28"):
        rate_of(json.dumps(failed), "read")


def test_fio_is_asked_for_bounded_work():
    words = fio_command("randread", "/scratch/x", 2**30, 4, direct=True)
    for word in ("--size=1073741824", "--numjobs=4", "--direct=1", "--runtime=3",
                 "--io_size=67108864", "--directory=/scratch/x"):  # fmt: skip
        assert word in words
    assert "--end_fsync=1" in fio_command("write", "/scratch/x", 2**30, 1, direct=False)


def request_of(folder: Path) -> ProbeRequest:
    return ProbeRequest(
        part="storage",
        options=ProbeOptions(quick=True),
        node="node-0",
        targets=(ProbedFolder(name="disk", folder=str(folder)),),
        clients=(1, 2),
    )


@pytest.mark.slow
def test_without_fio_the_same_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("headrace_probes.storage._RANDOM_READS", 64)
    found = measure(request_of(tmp_path))
    names = [each.name for each in found.measurements]
    of_one = ["sequential write", "sequential read", "random 4 KiB reads", "files made"]
    assert names == [f"disk: {what}, {who}" for who in ("1 client", "2 clients") for what in of_one]
    assert all(each.settings.startswith("own") for each in found.measurements)
    assert all(len(each.values) == 3 and min(each.values) > 0 for each in found.measurements)
    assert found.notes == ()


def test_folders_that_were_measured_are_removed_whatever_happens(tmp_path: Path):
    kept = tmp_path / "tier" / "kept"
    kept.parent.mkdir(mode=0o700)
    kept.touch()
    job = NodeJob(
        requests=(),
        folder="",
        label="",
        env={},
        logs="",
        tiers=(Tier(name="disk", folder=str(kept.parent)), Tier(name="gone", folder="/proc/no")),
        shared=str(tmp_path),
    )

    def fail() -> None:
        with _targets(job) as (targets, notes):
            assert [each.name for each in targets] == ["disk", "shared"]
            (Path(targets[0].folder) / "client-0").touch()
            assert "tier gone: /proc/no cannot be created" in notes[0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [*kept.parent.iterdir()] == [kept]
    assert [*tmp_path.iterdir()] == [kept.parent]


FIVE = (10.0, 11.0, 12.0, 13.0, 14.0)


def measured(values: tuple[float, ...] = FIVE, **changes: Any) -> Measurement:
    given = {"part": "gemm", "name": "fp32", "settings": "2048", "unit": "GFLOP/s"}
    return Measurement(**{**given, "values": values, **changes})


def test_the_spread_is_that_of_the_middle_half():
    assert spread_of(FIVE) == pytest.approx(2 / 12)
    assert spread_of((3.0,)) == 0.0
    assert spread_of((10.0, 10.0, 10.0, 10.0, 1000.0)) == 0.0  # one that was disturbed


def test_nodes_are_put_together_and_the_slowest_is_named():
    first = measured(node="node-0", limit=24.0)
    slow = measured(tuple(each / 2 for each in FIVE), node="node-1", limit=24.0)
    (row,) = summaries([first, slow])
    assert (row.nodes, row.slowest, len(row.values)) == (2, "node-1", 10)
    assert row.of_limit == pytest.approx(row.median / 24)
    times = [measured(lower_is_better=True, node=name, values=value)
             for name, value in (("node-0", FIVE), ("node-1", (20.0,)))]  # fmt: skip
    assert summaries(times)[0].slowest == "node-1"


def test_figures_with_other_settings_are_not_compared():
    before, after = summaries([measured()]), summaries([measured(settings="4096")])
    both, alone = compared(before, after)
    assert both == ()
    assert [row.settings for row in alone] == ["2048", "4096"]


def test_a_loss_is_one_for_rates_and_for_times():
    for lower_is_better, factor in ((False, 0.5), (True, 1.5)):
        before = measured(lower_is_better=lower_is_better)
        after = measured(tuple(factor * each for each in FIVE), lower_is_better=lower_is_better)
        ((found,), _) = compared(summaries([before]), summaries([after]))
        assert found.loss == pytest.approx(0.5)
        assert found.is_beyond


def test_repeats_that_lie_among_each_other_do_not_differ():
    after = measured((9.0, 11.5, 12.5, 13.5, 13.8))
    ((found,), _) = compared(summaries([measured()]), summaries([after]))
    assert not found.is_beyond
    almost = measured((13.9, 15.0, 16.0, 17.0, 18.0))  # one of them is below the best before
    ((found,), _) = compared(summaries([measured()]), summaries([almost]))
    assert not found.is_beyond


@given(st.lists(st.floats(min_value=1.0, max_value=1e6), min_size=5, max_size=12))
def test_a_place_never_differs_from_itself(values: list[float]):
    rows = summaries([measured(tuple(values))])
    ((found,), alone) = compared(rows, rows)
    assert (found.loss, found.is_beyond, alone) == (0.0, False, ())


def test_scaling_efficiency_needs_one_rank_and_several():
    one = measured((10.0,), part="train", name="1", ranks=1)
    four = measured((30.0,), part="train", name="4", ranks=4)
    assert efficiency(summaries([one, four])) == pytest.approx(0.75)
    assert efficiency(summaries([one])) is None
    assert efficiency(summaries([four])) is None
    assert efficiency(()) is None


ASKED = {"recipe": "digits", "site": "laptop", "key": "k", "owner": "cli:h:1:1", "kind": "probe"}


def options(**given: object) -> StepOptions:
    return ProbeOptions.model_validate(given).model_dump(mode="json")


def test_a_request_has_the_options_of_its_kind():
    chosen = options(only=["gemm"], quick=True)
    request = RunRequest.model_validate({**ASKED, "options": chosen})
    assert request.words == ("probe", "--site", "laptop", "--only", "gemm", "--quick")
    assert RunRequest.model_validate({**ASKED, "kind": "train"}).options is None
    assert RunRequest.model_validate(ASKED).options == options()


def test_probes_tell_of_those_that_measure_the_same(headrace_home: Path):
    quick, full = options(only=["memory"], quick=True), options()
    for chosen, took_s in ((quick, 5.0), (full, 500.0)):
        run = make_run(kind="probe", options=chosen)
        attempt_row_of(run, "probe", lease_on_disk(run, "gpu"), kind="probe", number=None,
                       state=StepState.SUCCEEDED, started_at=1000.0,
                       finished_at=1000.0 + took_s)  # fmt: skip
    site = load_site("laptop")
    for chosen, took_s in ((quick, 5.0), (full, 500.0)):
        (part,) = predict(run.recipe, site, "probe", chosen).parts
        assert (part.name, part.seconds, part.num_known) == ("probe", pytest.approx(took_s), 1)
    other = options(only=["gemm"])
    assert predict(run.recipe, site, "probe", other).unknown == ("probe",)


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


def probed_on(blas: str) -> Probed:
    facts = {"CPU": "a CPU", "openblas of numpy": blas}
    record = ProbeRecord(
        site="s", role="gpu", backend="local", options=ProbeOptions(), container="",
        started_at=1.0, finished_at=2.0, nodes=(), findings=Findings(machines={"node": facts}),
    )  # fmt: skip
    return Probed(
        run_id="r", record=record, rows=(), efficiency=None, report="", images={}, elapsed_s=1.0,
        node_s=1.0, usd=None, cpu_use=None, gpu_use=None,
    )  # fmt: skip


def test_hosts_with_another_blas_differ():
    old, new = probed_on("0.3.21, kernel Haswell"), probed_on("0.3.30, kernel SkylakeX")
    (found,) = side_by_side(old, new).machines
    assert (found.key, found.before, found.after) == (
        "openblas of numpy", "0.3.21, kernel Haswell", "0.3.30, kernel SkylakeX",
    )  # fmt: skip
    assert "kernel SkylakeX" in report_of_comparison(side_by_side(old, new))
    assert side_by_side(old, old).machines == ()
