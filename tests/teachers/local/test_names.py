"""Names in checkpoints: of wrappers, of several networks in one file, of old versions of torchvision."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import refused
from tables import all_hold
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dfme.config.settings import TeacherConfig
from dfme.nets import build_net
from dfme.nets.state_files import plain_state
from dfme.nets.torchvision_nets import current_names
from dfme.teachers.build import make_teacher

State = dict[str, Tensor]
SHAPE = (1, 8, 8)

torch.manual_seed(0)
NET = build_net("cnn_small", SHAPE, 10).eval()
OTHER = build_net("cnn_small", SHAPE, 10).eval()
A = NET.state_dict()
B = OTHER.state_dict()
X_BCHW = torch.rand(4, *SHAPE)

LIGHTNING = {
    "epoch": 3,
    "pytorch-lightning_version": "2.5.0",
    "hyper_parameters": {"lr": 0.1},
    "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.3)}},
    "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}],
}


def under(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def inside(part: str, word: str, state: State) -> State:
    """With a word after the first one, of the names that begin with ``part``."""
    return {
        name.replace(f"{part}.", f"{part}.{word}.") if name.startswith(f"{part}.") else name: value
        for name, value in state.items()
    }


AVERAGED = {**under("module.", B), "n_averaged": torch.tensor(3)}

LOADED: dict[str, Any] = {
    "AveragedModel": AveragedModel(NET).state_dict(),
    "part in DataParallel": inside("features", "module", A),
    "part checkpointed": inside("features", "_checkpoint_wrapped_module", A),
    "FSDP": under("_fsdp_wrapped_module.", inside("features", "_fsdp_wrapped_module", A)),
    "Fabric": under("_forward_module.", A),
    "Lightning": {**LIGHTNING, "state_dict": under("model.", A)},
    "Lightning, another name": {**LIGHTNING, "state_dict": under("my_cnn.", A)},
    "Lightning, all wrappers": {**LIGHTNING, "state_dict": under("net.module._orig_mod.", A)},
    "Lightning, a loss": {**under("model.", A), "criterion.weight": torch.ones(10)},
    "thop": {**A, "total_ops": torch.zeros(1), "features.0.total_params": torch.zeros(1)},
    "thop in Lightning": {**under("model.", A), "model.total_ops": torch.zeros(1)},
    "a number beside": {**A, "epoch": 3},
    "a random state beside": {"my_net": A, "rng_state": torch.zeros(99, dtype=torch.uint8)},
    "DeepSpeed": {"module": A, "global_steps": 3},
    "a key of their own": {"best": A, "epoch": 3},
    "an average alone": {"state_dict_ema": A},
}


def load(tmp_path: Path, value: Any, arch: str | None = None, **options: Any) -> Any:
    path = tmp_path / "teacher.pt"
    torch.save(value, path)
    classes = 10 if arch else None
    common = TeacherConfig(shape=SHAPE, num_classes=classes, label_mode="logits")
    settings = {"checkpoint": str(path), "arch": arch, **options}
    return make_teacher(common, settings, torch.device("cpu"))


def is_net(teacher: Any, net: torch.nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(teacher(X_BCHW), net(X_BCHW))


def test_what_wrappers_left_is_taken_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def holds(form: str) -> None:
        is_net(load(tmp_path, LOADED[form]), NET)
        is_net(load(tmp_path, LOADED[form], "cnn_small"), NET)

    all_hold(holds, ((form,) for form in LOADED))
    assert not caplog.records


SEVERAL: dict[str, tuple[Any, str, str]] = {
    "model and model_ema": ({"model": A, "model_ema": AVERAGED}, "model", "model_ema"),
    "the average first": ({"ema_state_dict": B, "state_dict": A}, "state_dict", "ema_state_dict"),
    "params": ({"params_ema": B, "params": A}, "params", "params_ema"),
    "in one module": (
        {"state_dict": under("model.", A) | under("ema_model.", AVERAGED)},
        "model",
        "ema_model",
    ),
}


def test_a_network_beside_its_average_is_said_and_the_other_can_be_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def holds(form: str) -> None:
        value, chosen, other = SEVERAL[form]
        caplog.clear()
        is_net(load(tmp_path, value), NET)
        said = f"takes the weights under {chosen}, not those under {other} (--teacher.entry)"
        assert [record.getMessage() for record in caplog.records] == [f"teacher: {said}"]
        caplog.clear()
        is_net(load(tmp_path, value, entry=other), OTHER)
        is_net(load(tmp_path, value, "cnn_small", entry=chosen), NET)
        assert not caplog.records

    all_hold(holds, ((form,) for form in SEVERAL))


PAIR = under("student.", A) | under("teacher.", B)
NORMALISED = {**under("model.", A), "normalize.mean": torch.ones(1), "normalize.std": torch.ones(1)}
ASKED: dict[str, tuple[Any, str, str]] = {
    "two of them": (PAIR, "it holds the network 2 times, under student, teacher", "teacher"),
    "two keys": ({"a": A, "b": B}, "holds 2 state dicts, under a, b", "b"),
    "nested": ({"state_dict": PAIR}, "say --teacher.entry with one", "state_dict.teacher"),
}


def test_what_can_be_read_in_two_ways_is_asked(tmp_path: Path) -> None:
    def holds(form: str) -> None:
        value, words, other = ASKED[form]
        refused(words, load, tmp_path, value)
        refused("say --teacher.entry", load, tmp_path, value, "cnn_small")
        is_net(load(tmp_path, value, entry=other), OTHER)

    all_hold(holds, ((form,) for form in ASKED))


def test_what_is_left_over_is_named_in_one_message(tmp_path: Path) -> None:
    error = refused("the network fits the names under model", load, tmp_path, NORMALISED)
    assert "normalize.mean, normalize.std, which may change its answers" in str(error)
    is_net(load(tmp_path, NORMALISED, entry="model"), NET)
    rest = {**A, "mean": torch.ones(1), "std": torch.ones(1), "extra.weight": torch.ones(1)}
    refused("names begin with features, linear, mean, std, extra;", load, tmp_path, rest)
    refused("3 unexpected, first mean, std, extra.weight", load, tmp_path, rest, "cnn_small")
    nonsense = refused("got nonsense; its names begin with", load, tmp_path, A, entry="nonsense")
    assert "--teacher.entry" in str(nonsense)


def test_a_word_of_a_wrapper_stays_where_it_tells_two_weights_apart() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    assert plain_state({"a._orig_mod.w": one, "a.w": two}) == {"a._orig_mod.w": one, "a.w": two}
    assert plain_state({"module": one}) == {"module": one}
    assert plain_state({"a.module.w": one, "a.v": two}) == {"a.module.w": one, "a.v": two}
    assert plain_state({"step": torch.ones(3), "b.n_averaged": one}).keys() == {"step"}


torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))


def load_torchvision(path: Path, arch: str, edge: int = 96, **options: Any) -> Any:
    config = TeacherConfig(shape=(3, edge, edge), num_classes=4, label_mode="logits")
    settings = {"checkpoint": str(path), "arch": arch, **options}
    return make_teacher(config, settings, torch.device("cpu"))


def network(arch: str, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = torchvision.models.get_model(arch, weights=None, num_classes=4, **arguments)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)
    return net.eval()


def answers_as(teacher: Any, net: nn.Module, edge: int = 96) -> None:
    x_BCHW = torch.rand(2, 3, edge, edge)
    with torch.no_grad():
        torch.testing.assert_close(teacher(x_BCHW), net(x_BCHW))


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_what_weights_do_not_tell_is_asked(tmp_path: Path, arch: str) -> None:
    torch.save({"conv1.conv.weight": torch.ones(1, 3, 1, 1)}, tmp_path / "net.pth")
    refused("--teacher.transform-input", load_torchvision, tmp_path / "net.pth", arch)


def test_what_only_two_networks_can_do_is_refused_of_others(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.ones(1, 3, 1, 1)}, tmp_path / "net.pth")
    words = "expected for googlenet or inception_v3 alone, got it for resnet18"
    refused(words, load_torchvision, tmp_path / "net.pth", "resnet18", transform_input=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_auxiliary_heads_are_left_out_and_the_input_is_scaled_as_said(
    tmp_path: Path, arch: str
) -> None:
    path = tmp_path / "net.pth"
    net = network(arch, init_weights=False)
    torch.save(net.state_dict(), path)
    assert any(re.match("aux|Aux", name) for name in net.state_dict())
    plain = load_torchvision(path, arch, transform_input=False)
    answers_as(plain, net)
    net.transform_input = True
    answers_as(load_torchvision(path, arch, transform_input=True), net)
    x_BCHW = torch.rand(1, 3, 96, 96)
    assert not torch.allclose(net(x_BCHW), plain(x_BCHW))
    without = {name: value for name, value in net.state_dict().items() if "aux" not in name.lower()}
    torch.save({"state_dict": {f"model.{name}": value for name, value in without.items()}}, path)
    answers_as(load_torchvision(path, arch, transform_input=True), net)


OLD: dict[str, list[tuple[str, str]]] = {
    "densenet121": [(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.")],
    "vit_b_32": [(r"mlp\.0\.", "mlp.linear_1."), (r"mlp\.3\.", "mlp.linear_2.")],
}
"""Of the names of today, what stood in older ones."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", OLD)
def test_names_of_torchvisions_own_files_are_read(tmp_path: Path, arch: str) -> None:
    sized = {"image_size": 96} if arch == "vit_b_32" else {}
    net = network(arch, **sized)
    old = net.state_dict()
    for today, earlier in OLD[arch]:
        old = {re.sub(today, earlier, name): value for name, value in old.items()}
    assert old.keys() != net.state_dict().keys()
    assert current_names(arch, old).keys() == net.state_dict().keys()
    torch.save(old, tmp_path / "net.pth")
    answers_as(load_torchvision(tmp_path / "net.pth", arch), net)


@pytest.mark.exhaustive
def test_a_network_that_asks_for_the_version_of_its_weights_is_loaded(tmp_path: Path) -> None:
    net = network("mnasnet0_5")
    torch.save(dict(net.state_dict()), tmp_path / "net.pth")
    answers_as(load_torchvision(tmp_path / "net.pth", "mnasnet0_5"), net)
