"""What an accelerator's arithmetic and checks keep to: fp32 bit for bit, one transfer, few kernels."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from numerics import Launches, pretended
from torch import Tensor, nn

from dfme.compute import device as device_module
from dfme.compute import modules as modules_module
from dfme.compute.device import Streams, has_fast_bf16, ieee_fp32
from dfme.compute.modules import DeferredChecks, evaluating
from dfme.methods.base import Ask
from dfme.nets.architectures import SteadyBatchNorm2d
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.run.components import build_components, build_method
from research.options import BenchConfig
from research.speed import CASES, Work

KEYS = [("generic", "all")] + [
    (backend, operation)
    for backend in ("cuda", "mkldnn")
    for operation in ("all", "matmul", "conv", "rnn")
]


def settings() -> dict[str, object]:
    """Everything that can be read, older and newer, including that an older reader raises."""
    seen: dict[str, object] = {str(key): device_module._read(key) for key in KEYS}
    readers: dict[str, Callable[[], object]] = {
        "matmul": torch.get_float32_matmul_precision,
        "cuda.matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn": lambda: torch.backends.cudnn.allow_tf32,
        "autocast": lambda: [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "autocast dtype": lambda: torch.get_autocast_dtype("cpu"),
    }
    for name, read in readers.items():
        try:
            seen[name] = read()
        except RuntimeError as error:
            seen[name] = str(error)
    return seen


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    """Leave the process as found: the older switches first, since they write some of the newer
    ones.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = {key: device_module._read(key) for key in KEYS}
        matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        yield
        torch.set_float32_matmul_precision(matmul)
        if settings()["cudnn"] is not cudnn:
            torch.backends.cudnn.allow_tf32 = cudnn
        for key in before:
            inherits = key[1] in ("conv", "rnn") and key[0] == "cuda"
            if not (inherits and device_module._read(key) == before[key]):
                device_module._write(key, before[key])


def network() -> Callable[[], Tensor]:
    rng = torch.Generator().manual_seed(0)
    weight, images = torch.randn(256, 64, generator=rng), torch.randn(32, 4, 8, 8, generator=rng)
    kernel = torch.randn(4, 4, 3, 3, generator=rng)
    return lambda: nn.functional.conv2d(images, kernel, padding=1).flatten(1) @ weight


def write(*settings: tuple[str, str, str]) -> Callable[[], None]:
    def apply() -> None:
        for backend, operation, value in settings:
            device_module._write((backend, operation), value)

    return apply


OUTSIDE: dict[str, Callable[[], object]] = {
    "untouched": lambda: None,
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn off": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "generic": write(("generic", "all", "bf16")),
    "backend": write(("cuda", "all", "tf32"), ("mkldnn", "all", "bf16")),
    "operations": write(
        ("cuda", "matmul", "tf32"), ("cuda", "conv", "ieee"), ("mkldnn", "conv", "bf16")
    ),
    "mixed": lambda: (
        torch.set_float32_matmul_precision("medium"),
        write(("cuda", "matmul", "ieee"))(),
    ),
    "unset": lambda: (
        torch.set_float32_matmul_precision("high"),
        write(("cuda", "matmul", "none"))(),
    ),
}


@pytest.mark.parametrize("autocast_outside", [False, True])
@pytest.mark.parametrize("outside", OUTSIDE)
def test_inside_is_plain_fp32_and_outside_is_as_before(
    outside: str, autocast_outside: bool
) -> None:
    run = network()
    plain = run()
    OUTSIDE[outside]()
    with torch.autocast("cpu", torch.bfloat16) if autocast_outside else nullcontext():
        before, result_before = settings(), run()
        assert (result_before.dtype == torch.bfloat16) == autocast_outside
        with ieee_fp32(), ieee_fp32():
            inside, result = settings(), run()
        assert settings() == before
        assert torch.equal(run(), result_before)
    assert result.dtype == torch.float32
    assert torch.equal(result, plain)
    assert inside["matmul"] == "highest"
    assert inside["cuda.matmul"] is False
    assert inside["autocast"] == [False, False]
    assert {str(inside[str(key)]) for key in KEYS} == {"ieee"}


def test_settings_come_back_after_an_exception_and_nothing_is_said() -> None:
    torch.set_float32_matmul_precision("medium")
    before = settings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError), ieee_fp32():
            _ = 1 / 0
    assert settings() == before


def test_operations_that_inherit_go_on_inheriting() -> None:
    """Otherwise a user who later asks for IEEE everywhere would silently not get it."""
    torch.set_float32_matmul_precision("high")
    write(("cuda", "matmul", "none"))()
    device_module._write(("generic", "all"), "ieee")
    before = settings()
    device_module._write(("generic", "all"), "none")
    with ieee_fp32():
        pass
    device_module._write(("generic", "all"), "ieee")
    assert settings() == before


def test_other_threads_keep_their_autocast() -> None:
    seen: list[torch.dtype] = []

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(network()().dtype)

    with ieee_fp32():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [torch.bfloat16]


@pytest.mark.gpu
def test_tf32_is_off_inside_on_a_gpu() -> None:
    images = torch.randn(64, 64, 32, 32, generator=torch.Generator().manual_seed(0))
    conv = nn.Conv2d(64, 64, 3, padding=1)
    truth = conv.double()(images.double())
    conv = conv.float().cuda()
    torch.set_float32_matmul_precision("high")
    with torch.no_grad():
        coarse = (conv(images.cuda()).cpu() - truth).abs().max()
        with ieee_fp32():
            fine = (conv(images.cuda()).cpu() - truth).abs().max()
    assert fine < 1e-5
    assert coarse > 10 * fine


@pytest.mark.parametrize(
    ("capabilities", "device", "fast"),
    [
        ({"avx512_bf16": True}, "cpu", True),
        ({"avx512_bf16": True}, "cuda", False),
        ({"avx512_bf16": False, "avx512_f": True}, "cpu", False),
        ({"architecture": "aarch64"}, "cpu", False),
        (None, "cpu", False),
    ],
)
def test_bf16_is_fast_on_a_cpu_that_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object] | None, device: str, fast: bool
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)  # as in torch 2.9
    if capabilities is not None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_fast_bf16(torch.device(device)) is fast


def failing(text: str) -> Callable[[], Exception]:
    return lambda: ValueError(text)


def test_flags_are_read_by_one_transfer_and_the_first_that_fails_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = list[torch.Size]()
    tolist = Tensor.tolist
    monkeypatch.setattr(
        Tensor, "tolist", lambda flags: (reads.append(flags.shape), tolist(flags))[1]
    )
    monkeypatch.setattr(Tensor, "__bool__", lambda flag: pytest.fail("a flag is read alone"))
    with pretended():
        checks = DeferredChecks()
        for number in range(1_000):
            checks.expect(torch.tensor(number not in (700, 300)), failing(f"flag {number}"))
        with pytest.raises(ValueError, match="flag 300"):
            checks.verify()
        checks.verify()  # what was read is read
    assert reads == [(1_000,)]


def test_flags_that_nobody_reads_do_not_pile_up_and_on_the_cpu_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules_module, "MAX_PENDING", 8)
    with pretended():
        checks = DeferredChecks()
        for number in range(7):
            checks.expect(torch.tensor(number != 3), failing(f"flag {number}"))
        with pytest.raises(ValueError, match="flag 3"):
            checks.expect(torch.tensor(True), failing("the eighth"))
    with pytest.raises(ValueError, match="now"):
        DeferredChecks().expect(torch.tensor(False), failing("now"))


class Frozen(nn.BatchNorm1d):
    """One that never trains, as people write it."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("training", [True, False])
def test_every_module_is_in_eval_mode_meanwhile_and_in_its_own_afterwards(training: bool) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), Frozen(2))
    inner.register_module("absent", None)
    scripted = torch.jit.script(nn.Sequential(nn.Dropout()))
    net = nn.Sequential(inner, nn.ModuleList([nn.Dropout()]), scripted).train(training)
    before = [module.training for module in net.modules()]
    with evaluating(net):
        assert not any(module.training for module in net.modules())
        x = torch.ones(64, 1)
        assert torch.equal(scripted(x), x)
    assert [module.training for module in net.modules()] == before
    assert not inner[2].training
    assert (scripted(torch.ones(64, 1)).count_nonzero() < 64) == training


MOST = 1_473
"""Operations of ATen, counted by dispatch, that are neither views nor reserve memory; 2,196 in
0.7.0 by this count.

An operation of several kernels counts once (a convolution's backward), one over a list of tensors
too.
"""


@pytest.mark.exhaustive  # 3 seconds, most of it to make the networks
def test_an_iteration_of_the_paper_launches_no_more_kernels_than_before() -> None:
    """ResNet-34-8x to ResNet-18-8x: one generator step by one forward difference, five student
    batches.
    """
    with pretended(), torch.random.fork_rng():
        work = Work(CASES["resnet"], BenchConfig(batch_size=2), torch.device("cpu"))
        job = dataclasses.replace(
            work.job, config=dataclasses.replace(work.job.config, budget=10**6)
        )
        oracle = Oracle(work.teacher, Ledger(10**6), None, deferred := DeferredChecks())
        method = build_method(
            job, build_components(job, work.nets, oracle, Streams(0, work.device), deferred)
        )
        assert method.asks() == [Ask("generator", 4), Ask("student", 10)]
        method.step()  # momenta are made
        with Launches() as launched:
            method.step()
    assert launched.count <= MOST, f"{launched.count} kernels; {MOST} is the most there may be"


@pytest.mark.parametrize("training", [True, False])
def test_on_an_accelerator_batch_normalisation_counts_no_batches_and_is_the_same(
    training: bool,
) -> None:
    ours, theirs = SteadyBatchNorm2d(4).train(training), torch.nn.BatchNorm2d(4).train(training)
    with pretended():
        for seed in range(2):
            x_BCHW = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(ours(x_BCHW), theirs(x_BCHW))
    for name, value in theirs.state_dict().items():
        if name != "num_batches_tracked":
            assert torch.equal(ours.state_dict()[name], value), name
    assert ours.num_batches_tracked == 0
