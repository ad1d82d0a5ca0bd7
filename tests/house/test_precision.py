"""Inside ``ieee_fp32`` results are those of plain fp32, bit for bit; outside, nothing has
changed.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from dfme.compute import device as device_module
from dfme.compute.device import has_fast_bf16, ieee_fp32

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
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(64, 64, 32, 32, generator=rng)
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
    ("told", "device", "fast"),
    [
        ({"avx512_bf16": True}, "cpu", True),
        ({"avx512_bf16": True}, "cuda", False),
        ({"avx512_bf16": False, "avx512_f": True}, "cpu", False),
        ({"architecture": "aarch64"}, "cpu", False),
        (None, "cpu", False),
    ],
)
def test_bf16_is_fast_on_a_cpu_that_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object] | None, device: str, fast: bool
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)  # as in torch 2.9
    if told is not None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert has_fast_bf16(torch.device(device)) is fast
