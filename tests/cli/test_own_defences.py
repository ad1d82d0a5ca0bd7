"""The page's defence and detector of one's own, by every entrance; what is none, and what fails in
use.
"""

import hashlib
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import SMALL, one_line, parse, run, summary
from small_runs import no_pictures, no_rehearsal
from test_detect import WEIGHTS, write_log

import dfme
from dfme.answers.recover import known_map
from dfme.cli.audit import plan_of as audit_of
from dfme.cli.compare import plan_of
from dfme.config.defences import parse_defences
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.oracle.ledger_log import read_history
from dfme.spec import LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.owner import utility
from dfme.teachers.owner.watch import detection

TEACHER = f"--teacher.checkpoint {WEIGHTS}"
PAGE = WEIGHTS.parents[2] / "docs/extending.md"
OURS = re.findall(r"file my_de\w+\.py -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
FAULTY = """
import math

from dfme.config.defences import Facts

class Secret:
    def answer(self, p_BK, images_BCHW):
        p_BK *= 1  # what it is given is its own
        return p_BK

class Faulty(Secret):
    def __init__(self, fault: str):
        self.fault = fault
    def admit(self, images):
        assert self.fault != "admit", "no more"
    def answer(self, p_BK, images_BCHW):
        if len(p_BK) < 3 and self.fault != "early":  # as long as it is tried
            return p_BK.tolist()
        return {"shape": p_BK[:, 1:], "nan": 0 * p_BK / 0, "early": p_BK[0]}[self.fault]

class Remembering(Secret):
    def __init__(self, how: str = "none"):
        self.how = how
        self.state = {"list": [1], "entry": {"seen": [1]}}.get(how, {"n": 0, "t": torch.zeros(0, 2)})
    def answer(self, p_BK, images_BCHW):
        late = self.how.startswith("late") and len(p_BK) > 2
        state = self.state
        how = self.how.removeprefix("late_") if late or not self.how.startswith("late") else "none"
        if how == "float":
            state["n"] = 0.5
        elif how == "negative":
            state["n"] -= len(p_BK)
        elif how == "wider":
            state["t"] = torch.zeros(2, 3)
        elif how == "double":
            state["t"] = torch.zeros(2, 2).double()
        elif how == "gone":
            self.state = None
        elif how == "dtype":
            torch.set_default_dtype(torch.float64)
        elif how == "device":
            torch.set_default_device("meta")
        elif how == "gradient":
            torch.set_grad_enabled(False)
        return p_BK

class Setting(Remembering):
    def __init__(self):
        super().__init__()
        torch.set_default_dtype(torch.float64)

class Stating(Secret):
    facts = "keeps the top class"

class Stating2(Secret):
    facts = Facts("yes", l1=float("nan"))

class Stating3(Secret):
    facts = Facts("always")

class Never(Contrast):
    threshold = math.inf

class Nan(Contrast):
    threshold = float("nan")

class Worded(Contrast):
    threshold = "8"

class Missing(Contrast):
    threshold = None

class Complex(Contrast):
    threshold = 1 + 0j

class Vast(Contrast):
    threshold = 10**400

class Yes(Contrast):
    threshold = True

class SetLate(Contrast):
    def __init__(self, benign):
        super().__init__(benign)
        self.threshold = None

class Later(Contrast):
    def measure(self, seen, last):
        if len(seen) > 2:
            self.threshold = math.inf
        return super().measure(seen, last)

class Doubling(Contrast):
    def measure(self, seen, last):
        torch.set_default_dtype(torch.float64)
        return super().measure(seen, last)

class Growing(Contrast):
    def __init__(self, benign):
        super().__init__(benign)
        self.state["many"] = torch.zeros(1)
    def measure(self, seen, last):
        self.state["many"] = torch.zeros(len(seen) + 1)
        return super().measure(seen, last)

class Late(Contrast):
    def measure(self, seen, last):
        return super().measure(seen, last) / (len(seen) < 3)

class Dark(Contrast):
    def measure(self, seen, last):
        return seen.images_BCHW.mean()
"""
MINE = "".join([*OURS, FAULTY])


@pytest.fixture(autouse=True)
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (here / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(detection, "SESSIONS", 1)
    monkeypatch.setattr(detection, "STREAMS", ("random order",))
    monkeypatch.setattr(utility, "ROUNDS_SECONDS", 0.01)
    sys.path.append(str(here))
    with no_pictures(), no_rehearsal():
        yield import_module("mine")


def test_a_run_keeps_names_digests_and_states(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        f"{TEACHER} --teacher.defences mine:Blend:share=0.5+lattice --teacher.watch "
        "labels,mine:Contrast"
    )
    assert run(f"{words} --teacher.benign digits --budget 80 {SMALL} --out run") == 0
    assert summary()["defences"] == ["mine:Blend:share=0.5", "lattice:n=10"]
    assert summary()["defence_report"]["mine:Blend"] == {"answered": 80}
    assert "mine:Blend:share=0.5" in Path("run/config.yaml").read_text()
    digest = {"file": "mine.py", "sha256": hashlib.sha256(MINE.encode()).hexdigest()}
    facts = read_history(Path("run/ledger.jsonl")).teacher or {}
    assert facts["sources"] == {"mine:Blend": digest, "mine:Contrast": digest}
    with Path("mine.py").open("a") as file:
        file.write("\n")
    assert run("--config run/config.yaml --resume --out run --budget 96") == 0
    assert "mine:Contrast: 'mine.py' (sha256" in capsys.readouterr().err
    assert summary()["defence_report"]["mine:Blend"] == {"answered": 96}


def test_answers_are_those_of_arithmetic_and_a_look_changes_nothing(mine: Any) -> None:
    x_BCHW = torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    plain, own = (
        make_teacher(
            TeacherConfig(defences=defences), {"checkpoint": str(WEIGHTS)}, torch.device("cpu")
        )
        for defences in ((), [mine.Secret, {"name": "mine:Blend", "share": 0.1}])
    )
    assert torch.allclose(own(x_BCHW), plain(x_BCHW) * 0.9 + 0.01, atol=1e-7)
    own.info.preview(x_BCHW)  # type: ignore[misc]
    assert own.info.stateful.report() == {"mine:Blend": {"answered": 50}}


def test_yaml_says_the_same_as_flags() -> None:
    teacher = f"{{checkpoint: {WEIGHTS}, watch: [mine:Contrast], benign: digits"
    Path("r.yaml").write_text(
        f"teacher: {teacher}, defences: [{{name: mine:Blend, share: 0.5}}, lattice]}}"
    )
    flags = "--teacher.defences mine:Blend:share=.5+lattice --teacher.watch mine:Contrast"
    teacher = parse(f"{TEACHER} {flags} --teacher.benign digits").teacher
    assert parse("--config r.yaml").teacher == teacher
    assert teacher.defences == ("mine:Blend:share=0.5", "lattice:n=10")


def test_extract_takes_objects_classes_and_names(mine: Any) -> None:
    asked: dict[str, Any] = {
        "budget": 64,
        "num_classes": 10,
        "shape": (1, 8, 8),
        "method": "static",
    }
    asked |= {
        "student": {"arch": "cnn_small", "replay_steps": 0},
        "method_options": {"batch_size": 32},
    }
    asked |= {
        "defences": [mine.Blend(0.5), "lattice"],
        "watch": [mine.Contrast, "pairs"],
        "benign": "digits",
    }
    result = dfme.extract(lambda x: x.flatten(1)[:, :10].softmax(1), out="run", **asked).summary
    assert result["defences"] == ["mine:Blend:share=0.5", "lattice:n=10"]
    assert [*result["watch"]["detectors"]] == ["mine:Contrast", "pairs"]


def test_a_comparison_and_an_audit_measure_it_beside_ours() -> None:
    shared = f"{TEACHER} --evaluation.dataset digits --evaluation.limit 20 --student-steps 20"
    words = (
        f"{shared} --methods static --label-modes probabilities --seeds 0 --out c --answers table"
    )
    comparison = plan_of(f"{words} --defences mine:Secret,mine:Blend".split())
    reasons = [cell.attempt.reason for cell in comparison.cells]
    assert reasons[0].startswith("what mine:Secret answers cannot be worked out from probabilities")
    assert not reasons[1]
    table = known_map(
        comparison.cells[1].job.config.answers, LabelMode("probabilities"), torch.Generator()
    )
    assert torch.allclose(table(torch.eye(10).double()).diagonal(), torch.tensor(0.82).double())
    plan = audit_of(f"{shared} --out a --defences mine:Blend --teacher.watch mine:Contrast".split())
    assert (plan.config.defences, plan.watch) == (("mine:Blend",), ("mine:Contrast",))


def test_utility_bills_it() -> None:
    words = f"{TEACHER} --evaluation.dataset digits --evaluation.limit 40 --out u"
    assert run(f"utility {words} --teacher.defences lattice,mine:Blend:share=0.5") == 0
    own = json.loads(Path("u/utility.json").read_text())["rows"][2]
    assert own["states"]["top_kept"] == "no"  # it states nothing
    assert 0.8 < own["held_out"]["l1_mean"] <= 0.9  # of a sure answer twice .45


def test_detect_reads_a_log_with_it(here: Path) -> None:
    write_log(here / "log")
    assert (
        run(f"detect log --benign digits {TEACHER} --out found --teacher.watch mine:Contrast,pairs")
        == 0
    )
    detection_json = json.loads(Path("found/detection.json").read_text())
    assert [*detection_json["accounts"][0]["thinned"]["1"]] == ["mine:Contrast", "pairs"]


def test_serve_puts_it_before_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("dfme.teachers.owner.serve.server")
    served = list[Any]()
    monkeypatch.setattr(server, "serve", lambda teacher, config, tell: str(served.append(teacher)))
    words = "--watch mine:Contrast,labels --benign digits --teacher.defences mine:Blend:share=0.5"
    assert run(f"serve {TEACHER} {words}") == 0
    assert float(served[0]((torch.rand(300, 1, 8, 8) < 0.5).float()).min()) >= 0.05
    assert served[0].watch.report()["detectors"]["mine:Contrast"]["first_alarm"] < 20


BENIGN = "none --teacher.benign digits --teacher.watch"
NONE = {
    "mine:Blent": "mine.py: no 'Blent' in it; did you mean Blend?",
    "nowhere:Blend": "--teacher.defences: defence nowhere:Blend: no module 'nowhere' in",
    "mine:Contrast": (
        "expected a class with a method answer(p_BK, images_BCHW), as docs/extending.md has one"
    ),
    "mine:Blend:shar=1": "mine:Blend:shar: unknown option; did you mean share?",
    "mine:Blend:share=x": "mine:Blend:share: expected a number, got 'x'",
    "mine:Faulty:fault=early": "defence mine:Faulty: ValueError: expected probabilities (2, 10), none",
    f"{BENIGN} nowhere:Dim": "--teacher.watch: detector nowhere:Dim: no module",
    f"{BENIGN} mine:Blend": "expected a class derived from Detector, as docs/extending.md has one",
    f"{BENIGN} mine:Dark": "detector mine:Dark: ValueError: expected 2 finite numbers, one per image",
    "none --teacher.watch mine:Late": "expected held-out labelled images to calibrate mine:Late on",
    **{
        f"mine:Remembering:how={how}": f"defence mine:Remembering: its state{said}"
        for how, said in {
            "list": ": expected a dict of numbers and tensors by name, got list [1]",
            "entry": ": expected a dict of numbers and tensors by name, got list [1] under 'seen'",
            "gone": ": expected a dict of numbers and tensors by name, got NoneType None",
            "float": (
                " changes its form, so no run could resume: state.n: expected int 0, got float 0.5"
            ),
            "negative": (
                " changes its form, so no run could resume: state.n: expected int 0, got int -2"
            ),
            "wider": (
                " changes its form, so no run could resume: state.t: expected finite torch.float32"
            ),
            "double": (
                " changes its form, so no run could resume: state.t: expected finite torch.float32"
            ),
        }.items()
    },
    "mine:Remembering:how=dtype": "mine:Remembering: it sets PyTorch's default dtype to torch.float64",
    "mine:Remembering:how=device": "mine:Remembering: it sets PyTorch's default device to meta",
    "mine:Remembering:how=gradient": "Remembering: it sets PyTorch's recording of gradients to False",
    "mine:Setting": "defence mine:Setting: it sets PyTorch's default dtype to torch.float64",
    "mine:Stating": "defence mine:Stating: expected facts to be a dfme.config.defences.Facts",
    "mine:Stating2": "its l1 is no distance from 0 to 2: nan",
    "mine:Stating3": "its keeps_top is none of yes, no, p_top>=1/2: 'always'",
    f"{BENIGN} mine:Never": "detector mine:Never: its threshold: expected a finite number, got inf",
    f"{BENIGN} mine:Nan": "detector mine:Nan: its threshold: expected a finite number, got nan",
    **{
        f"{BENIGN} mine:{name}": f"mine:{name}: its threshold: expected a finite number, got {got}"
        for name, got in {
            "Worded": "'8'",
            "Missing": "None",
            "Complex": "(1+0j)",
            "Vast": "1000000",
            "Yes": "True",
            "SetLate": "None",
        }.items()
    },
    f"{BENIGN} mine:Doubling": "detector mine:Doubling: it sets PyTorch's default dtype",
    f"{BENIGN} mine:Growing": "detector mine:Growing: its state changes its form",
    "mine:Secret --answers.recover table --answers.knows mine:Secret": "give the class a method map(p_BK)",
}
IN_USE = {
    "mine:Faulty:fault=other": "defence mine:Faulty: KeyError: 'other' (mine.py, line",
    "mine:Faulty:fault=shape": "none negative, with a sum of one each; got (16, 9) with sums",
    "mine:Faulty:fault=nan": "got (16, 10) with sums [nan, ",
    "mine:Faulty:fault=admit": "defence mine:Faulty: AssertionError: no more",
    f"{BENIGN} mine:Late": "detector mine:Late: ValueError: expected 16 finite numbers",
    f"{BENIGN} mine:Later": "detector mine:Later: its threshold: expected a finite number, got inf",
    "mine:Remembering:how=late_gone": "expected a dict of numbers and tensors by name, got NoneType None",
    "mine:Remembering:how=late_wider": "its state changes its form, so no run could resume: state.t",
    "mine:Remembering:how=late_dtype": "it sets PyTorch's default dtype to torch.float64",
}


@pytest.mark.parametrize("words", [*NONE, *IN_USE])
def test_what_is_none_or_fails_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(f"{TEACHER} --budget 60 {SMALL} --out run --teacher.defences {words}")
    assert (NONE | IN_USE)[words] in one_line(capsys)
    assert (code, Path("run/ledger.jsonl").exists()) == ((2, False) if words in NONE else (3, True))


def test_an_object_is_refused_whose_options_are_not_on_record(mine: Any) -> None:
    forgetful = mine.Faulty("shape")
    del forgetful.fault
    local = type("Local", (mine.Blend,), {"__qualname__": "f.<locals>.Local"})
    for wrong in (forgetful, mine.Faulty("a:b"), local, 5):
        with pytest.raises(
            UserError, match=r"expected (every option as|NAME:OP|a name, or a cl|a map)"
        ):
            parse_defences([wrong])
