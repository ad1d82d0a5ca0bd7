"""``run.py verify``: its statistic by other means, whom it calls alike, and what it keeps."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import one_line, run
from handmade import cells_here
from metered import METERED
from torch.nn import functional

from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.nets import build_net
from dfme.oracle.ledger import audit
from dfme.queries.programs import ProceduralImages
from dfme.run.student_file import save_student
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher
from dfme.teachers.options import TrainDataConfig, TrainTeacherConfig
from dfme.teachers.owner.training.train import train_teacher
from dfme.teachers.owner.watch.detector import Observation
from dfme.teachers.owner.watch.record import Recording, account_tag

PROJECT = Path(__file__).resolve().parents[2]
OWN = PROJECT / "teachers/checkpoints/digits.safetensors"
TWINS = ["cnn_small-1", "cnn_small-2", "cnn_small-3", "lenet5-4", "cnn_medium-5"]
INNOCENT = "cnn_small-6"
METER = f"""{METERED}

class Meter(Metered):
    shape, num_classes = (1, 8, 8), 10

    def __init__(self, log: str, mode: str = "random") -> None:
        super().__init__(log)
        self.mode = mode

    def __call__(self, images):
        self.count(images)
        top = [8 if self.mode == "constant" else int(1e6 * x.sum()) % 10 for x in images]
        p = torch.nn.functional.one_hot(torch.tensor(top), 10).float()
        return p / 0 if self.mode == "nan" else p
"""


def teacher(path: Path) -> Any:
    return make_teacher(TeacherConfig(), {"checkpoint": str(path)}, torch.device("cpu"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """References, an innocent twin of the same data and architecture, a copy, and a fine-tuned
    one.
    """
    folder = tmp_path_factory.mktemp("models")
    for name in (*TWINS, INNOCENT, "lenet5-7"):
        (arch, seed) = name.split("-")
        how: dict[str, Any] = {
            "augmentation": "shift",
            "padding": 1,
            "threads": 1,
            "lr": 0.05,
            "seed": int(seed),
            "out": f"{folder}/{name}.safetensors",
            "device": "cpu",
        }
        train_teacher(TrainTeacherConfig(TrainDataConfig(), arch, 12, 64, **how))
    own = teacher(OWN)
    data = load_dataset("digits", "train")
    drawn_NCHW = ProceduralImages(own.spec, ("leaves", "strokes")).draw(3_000, torch.Generator())
    torch.manual_seed(0)
    for name, x_NCHW, told_N in (
        ("copy", drawn_NCHW, own(drawn_NCHW)),
        ("tuned", data.batch(slice(0, 640)), data.required_labels[:640]),
    ):
        net = build_net("cnn_small", (1, 8, 8), 10)
        if name == "tuned":
            net.load_state_dict(own.info.network.state_dict())
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3 if name == "copy" else 1e-4)
        for _ in range(15 if name == "copy" else 3):
            for at_B in torch.randperm(len(x_NCHW)).split(64):
                optimizer.zero_grad()
                functional.cross_entropy(net(x_NCHW[at_B]), told_N[at_B]).backward()
                optimizer.step()
        save_student(
            folder / f"{name}.safetensors", net.eval(), "cnn_small", ImageSpec((1, 8, 8)), 10
        )
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture
def words(models: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (here / "meter.py").write_text(METER)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, "meter", raising=False)
    references = ",".join(str(models[name]) for name in TWINS)
    return f"--model {OWN} --references {references} --evaluation.dataset digits --out found"


@pytest.mark.integration
@pytest.mark.parametrize("name", ["copy", "tuned", INNOCENT])
def test_whom_it_calls_alike(name: str, models: dict[str, Path], words: str, capsys: Any) -> None:
    assert run(f"verify {models[name]} {words}") == (0 if name == INNOCENT else 5)
    shown, verdict = capsys.readouterr().out, json.loads(Path("found/verify.json").read_text())
    assert "a common ancestor that both were fine-tuned from" in shown
    assert "no rate of false alarms below 60% is claimed" in Path("found/verify.md").read_text()
    kept = torch.load("found/probes.pt", weights_only=True)
    content = kept["images"].numpy().tobytes() + kept["expected"].numpy().tobytes()
    assert hashlib.sha256(content).hexdigest() == verdict["probes"]
    suspect_N, own_N = (teacher(path)(kept["images"]).argmax(1) for path in (models[name], OWN))
    assert own_N.equal(kept["expected"])
    assert int((suspect_N == own_N)[: verdict["asked"]].sum()) == verdict["matches"]
    assert verdict["ledger"]["spent"] == verdict["asked"] == audit(Path("found/ledger.jsonl")).spent


PARROT = """
import torch


class Parrot:
    shape, num_classes = (1, 8, 8), 10

    def __init__(self):
        self.known = torch.load("known.pt")

    def __call__(self, images):
        labels = torch.tensor([self.known.get(x.numpy().tobytes(), 0) for x in images])
        return torch.nn.functional.one_hot(labels, 10).float()
"""


@pytest.mark.integration
def test_who_learnt_what_the_watermark_answered_is_called_alike(
    models: dict[str, Path], words: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", "a key of thirty-two characters!!")
    mark = "watermark:key_env=MARK:rate=0.05"
    own, options = teacher(OWN), {"checkpoint": str(OWN)}
    served = make_teacher(
        TeacherConfig(defences=mark, label_mode="label"), options, torch.device("cpu")
    )
    x_NCHW = ProceduralImages(own.spec, ("leaves", "strokes")).draw(1_000, torch.Generator())
    x_NCHW = x_NCHW.mul(255).round().div(255)
    record = Recording(Path("log"), 30, 10**8, print)
    thief = x_NCHW[:600]
    for account, part in (("thief", thief), ("thief", thief[:9]), ("honest", x_NCHW[600:])):
        record(account_tag(account), 1, Observation(part, own(part).double(), None))
    answer_N = served(thief)
    given = {x.numpy().tobytes(): int(answer) for x, answer in zip(thief, answer_N, strict=True)}
    torch.save(given, "known.pt")
    Path("parrot.py").write_text(PARROT)
    words = words.replace(" --evaluation.dataset digits", "")
    log = f"{words} --watermark {mark} --record log"
    of_thief = f"{log} --account {account_tag('thief')}"
    assert run(f"verify --teacher parrot:Parrot {of_thief}") == 5
    shown = capsys.readouterr().out
    assert "was made to answer wrongly, the suspect" in shown
    assert "it learnt from your service's answers with permission" in shown
    kept, verdict = torch.load("found/probes.pt"), json.loads(Path("found/verify.json").read_text())
    marked = (answer_N != own(thief).argmax(1)).sum()
    assert 20 < verdict["asked"] == verdict["matches"] == len(kept["images"]) <= marked
    assert [given[x.numpy().tobytes()] for x in kept["images"]] == kept["expected"].tolist()
    assert run("verify --resume --out found") == 5
    assert run(f"verify {models[INNOCENT]} {of_thief.replace('found', 'other')}") == 0
    assert json.loads(Path("other/verify.json").read_text())["probes"] == verdict["probes"]
    run(f"verify {models[INNOCENT]} {log.replace('found', 'all')}")
    assert json.loads(Path("all/verify.json").read_text())["asked"] > verdict["asked"]
    capsys.readouterr()
    for wrong, message in (
        (f"{words} --record log", "--watermark: expected watermark:key_env=NAME, as it was served"),
        (
            f"{words} --record log --watermark lattice",
            "--watermark: expected watermark:key_env=NAME",
        ),
        (
            f"{words} --record log --watermark watermark",
            "--watermark: expected watermark:key_env=NAME",
        ),
        (f"{words} --record log --watermark nonsense", "--watermark: expected a defence (quota, "),
        (f"{words} --watermark {mark}", "beside --record LOG"),
        (
            f"{log} --account 0123456789abcdef",
            "log: expected images (--record-images true), found none",
        ),
        (of_thief.replace("0.05", "0"), "--record: found 0 images to ask, too few"),
        (of_thief.replace("MARK", "GONE"), "the environment variable GONE should hold a key"),
        (
            of_thief.replace("record log", "record nowhere"),
            "expected a folder that run.py serve --record",
        ),
    ):
        assert run(f"verify {models['copy']} {wrong.replace('found', 'not')}") == 2
        assert message in one_line(capsys), wrong
    assert not Path("not").exists()


@pytest.mark.integration
def test_a_reference_that_is_a_copy_is_named(
    models: dict[str, Path], words: str, capsys: Any
) -> None:
    words = words.replace(str(models["cnn_small-3"]), str(models["tuned"]))
    assert run(f"verify {models[INNOCENT]} {words}") == 0
    assert f"but {models['tuned']} looks like a copy itself" in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["random", "constant", "nan"])
def test_answers_without_sense_accuse_nobody(mode: str, words: str, capsys: Any) -> None:
    code = run(f"verify --teacher meter:Meter --teacher.log log --teacher.mode {mode} {words}")
    assert code == (3 if mode == "nan" else 0)
    if mode == "nan":
        assert "got" in one_line(capsys)
        assert audit(Path("found/ledger.jsonl")).failed == len(Path("log").read_text().splitlines())


@pytest.mark.integration
def test_a_killed_one_goes_on_and_asks_nothing_twice(words: str, capsys: Any) -> None:
    suspect = f"verify --teacher meter:Meter --teacher.log log {words}"
    command = [sys.executable, str(PROJECT / "run.py"), *suspect.split()]
    dying = {**os.environ, "DIES_AFTER": "50"}
    assert (
        subprocess.run(command, capture_output=True, timeout=100, check=False, env=dying).returncode
        == -9
    )
    for _ in range(2):
        assert run("verify --resume --out found") == 0
    images, verdict = (
        Path("log").read_text().splitlines(),
        json.loads(Path("found/verify.json").read_text()),
    )
    assert len(images) == len({*images}) == verdict["asked"] == verdict["ledger"]["spent"] == 300


@pytest.mark.integration
def test_a_resumed_one_is_refused_with_other_options_and_chooses_probes_that_a_kill_took(
    models: dict[str, Path], words: str, capsys: Any
) -> None:
    assert run(f"verify {models['copy']} {words} --budget 60") in (0, 5)
    verdict = json.loads(Path("found/verify.json").read_text())
    capsys.readouterr()
    others = ",".join(str(models[name]) for name in [*TWINS[:3], "lenet5-7", "cnn_medium-5"])
    for change, keys in (
        ("--budget 90", "budget"),
        ("--seed 1", "seed"),
        ("--evaluation.limit 500", "evaluation.limit"),
        ("--teacher.levels 256", "teacher.levels"),
        (f"--references {others}", "references"),
        (
            "--teacher meter:Meter --teacher.log log",
            "teacher.kind, teacher.checkpoint, teacher.log",
        ),
    ):
        assert run(f"verify --resume --out found {change}") == 2, change
        assert "begun with other values of " in (line := one_line(capsys)), line
        assert all(key in line for key in keys.split(", ")), line
    for rest in ("--resume --out found", f"{words} --budget 60 --resume"):
        assert run(f"verify {models[INNOCENT]} {rest}") == 2
        line = one_line(capsys)
        assert "was started with a teacher of file checkpoint " in line, line
        assert run(f"verify {models['copy']} {rest}") in (0, 5)
        capsys.readouterr()
    assert audit(Path("found/ledger.jsonl")).spent == verdict["ledger"]["spent"]
    # of one that was killed before its probes were on file
    Path("early").mkdir()
    shutil.copy("found/config.yaml", "early")
    assert run(f"verify {models['copy']} --resume --out early") in (0, 5)
    again = json.loads(Path("early/verify.json").read_text())
    assert [again[key] for key in ("probes", "matches", "e_value")] == [
        verdict[key] for key in ("probes", "matches", "e_value")
    ]
    Path("found/probes.pt").unlink()  # what was asked is not known any more
    assert run("verify --resume --out found") == 2


@pytest.mark.integration
def test_one_with_its_suspect_in_front_goes_on_from_another_directory(
    models: dict[str, Path], words: str, here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("copy", INNOCENT):
        shutil.copy(models[name], f"{name}.safetensors")
    for name in TWINS:
        words = words.replace(str(models[name]), shutil.copy(models[name], f"{name}-r.safetensors"))
    assert run(f"verify copy.safetensors {words} --budget 60") in (0, 5)
    verdict = Path("found/verify.json").read_text()
    (here / "away").mkdir()
    shutil.copy("copy.safetensors", "away/moved.safetensors")
    shutil.copy(f"{INNOCENT}.safetensors", "away/copy.safetensors")  # another by the same name
    monkeypatch.chdir(here / "away")
    for suspect in ("moved.safetensors", "../copy.safetensors"):
        assert run(f"verify {suspect} --resume --out ../found") in (0, 5), one_line(capsys)
        again = json.loads((here / "found" / "verify.json").read_text())
        for key in ("probes", "matches", "e_value"):
            assert again[key] == json.loads(verdict)[key]
    capsys.readouterr()
    assert run("verify copy.safetensors --resume --out ../found") == 2
    assert "was started with a teacher of file checkpoint " in one_line(capsys)
    assert run("verify nowhere.safetensors --resume --out ../found") == 2
    assert "expected a file, but 'nowhere.safetensors' does not exist" in one_line(capsys)
    Path("../early").mkdir()
    shutil.copy("../found/config.yaml", "../early")  # killed before anything was asked
    assert run("verify copy.safetensors --resume --out ../early") == 2
    assert "begun with other values of teacher.checkpoint" in one_line(capsys)
    assert run("verify ../copy.safetensors --resume --out ../early") in (0, 5)


@pytest.mark.integration
def test_an_audit_says_which_of_its_copies_would_be_recognised(words: str, capsys: Any) -> None:
    references = words.split()[3]
    few = (
        "audit --label-modes probabilities,label --student.arch cnn_small --defences none"
        " --teacher.watch labels --twin none --transfer false --evaluation.points 2"
        f" --references {references} --out a"
    )
    with cells_here():
        assert run(f"{few} --budget 600") == 0
    verdict = json.loads(Path("a/audit.json").read_text())["recognition"]
    rows = {(row["row"], row["mode"]): row for row in verdict["rows"]}
    assert len(rows) == 4
    for (attacker, mode), row in rows.items():
        (cell,) = row["cells"]
        on = words.replace("dataset digits", "dataset digits@scored").replace(
            "found", f"{attacker}-{mode}"
        )
        code = run(f"verify a/cells/{cell}/student.safetensors {on}")
        alone = json.loads(Path(f"{attacker}-{mode}/verify.json").read_text())
        assert (row["e_values"], row["recognised"]) == ([alone["e_value"]], [code == 5])
        assert verdict["p_reference"] == alone["p_reference"]
        above = [row["matches"][0] > share for share in verdict["references"]]
        assert row["auroc"] == pytest.approx(sum(above) / 5, abs=0.1), "ties count half"
    assert rows["frugal", "probabilities"]["matches"] > rows["knockoff", "label"]["matches"]
    page = f"{Path('a/audit.html').read_text()} {Path('a/appendix.html').read_text()}"
    assert "Would you recognise the copy?" in page
    capsys.readouterr()
    assert run("audit --teacher meter:Meter --budget 10 --references a,b,c,d,e") == 2
    assert "--references: expected none: only copies of a --teacher.checkpoint" in one_line(capsys)
    elsewhere = few.replace("--out a", "--out b").replace("--teacher.watch labels", "")
    for none in ("--evaluation.dataset none", "--evaluation.mean 0.5 --evaluation.std 1"):
        assert run(f"{elsewhere} {none}") == 2
        assert "--references: expected --evaluation.dataset with it" in one_line(capsys)
    assert run(f"{elsewhere} --references missing") == 2
    assert "--references: expected the weights of five models or more, got 1" in one_line(capsys)


def test_nothing_at_all_is_said_to_be_missing(here: Path, capsys: Any) -> None:
    assert run("verify") == 2
    assert "--model: missing" in one_line(capsys)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "--references a,b,c,d",
            "--references: expected the weights of five models or more, got 4; train",
        ),
        (
            "--references {copy},{copy},{copy},{copy},{copy}",
            "expected different models, none of them yours",
        ),
        (
            "--references {lenet5-4},{lenet5-7},{cnn_small-1},{cnn_small-2},{cnn_medium-5}",
            "3 or more of your",
        ),
        (
            "--model missing.safetensors",
            "--model: expected a file, but 'missing.safetensors' does not exist",
        ),
        ("--model meter.py", "--model meter.py: expected the weights of a net"),
        (
            "--evaluation.limit 3 --budget 3",
            "found 3 images to ask, too few where an independent model",
        ),
        ("--evaluation.mean 0.5 --evaluation.std 1", "--evaluation.mean: leave it out"),
    ],
)
def test_what_cannot_work_is_refused_before_a_query(
    change: str, message: str, models: dict[str, Path], words: str, capsys: Any
) -> None:
    assert run(f"verify {models['copy']} {words} {change.format_map(models)}") == 2
    assert message in one_line(capsys)
    assert not Path("found").exists()
