"""The words of ``run.py audit``: what runs, what is refused before anything is asked."""

import os
from pathlib import Path

import numpy as np
import pytest

from dfme.audits.audit.options import KNOWING
from dfme.audits.audit.plan import FEW_ACCOUNTS, AuditPlan
from dfme.audits.audit.rows import MAX_LARGE_STEPS, images_in
from dfme.cli.audit import OWN, options, plan_of
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.errors import UserError

SERVICE = [
    "--teacher",
    "v2",
    "--teacher.url",
    "http://127.0.0.1:9",
    "--teacher.model",
    "m",
    "--budget",
    "3k",
    "--teacher.shape",
    "1,8,8",
    "--teacher.num-classes",
    "10",
]


def test_quick_on_the_default_teacher() -> None:
    plan = plan_of(["--price-per-1000", "1.5"])
    assert [cell.name for cell in plan.first.cells] == [
        f"{row}-{mode}-{images}-seed0"
        for row, images in (("frugal", "3k"), ("knockoff", "179"))
        for mode in ("probabilities", "probabilities_2", "label")
    ]
    assert {cell.job.config.evaluation.dataset for cell in plan.first.cells} == {"digits@scored"}
    assert plan.first.cells[-1].job.method_config.pool == "digits@like"
    assert (plan.halves.scored, plan.held_back) == (180, 179)
    assert plan.owner_evaluation.dataset == "digits"
    assert (plan.config.budget, plan.config.student_steps, plan.config.jobs) == (3_000, 2_000, 2)
    assert {cell.row: cell.job.config.student.steps for cell in plan.first.cells} == {
        "frugal": 2_000,
        "knockoff": 6 * 179,
    }
    assert {
        cell.job.config.student.steps
        for cell in plan_of(["--teacher.shape", "1,28,28"]).first.cells
        if cell.row == "frugal"
    } == {3_000}
    assert {
        cell.job.config.student.steps for cell in plan_of(["--student-steps", "2500"]).first.cells
    } == {2_500}
    assert plan.job.teacher.price_per_1000 == 1.5
    assert (len(plan.watch), plan.first.cells[0].job.teacher.watch) == (10, plan.watch)
    assert plan.first.cells[0].job.teacher.benign == "digits"
    assert plan.job.teacher.watch == ()  # who is not a cell asks unseen
    left_out, unsaid = plan.not_run
    assert left_out.why == "--profile quick"
    assert unsaid.why == "there are no --references"
    runs = plan.second("frugal", plan.config.defences).runs
    assert {cell.attempt.runs for cell in runs if not cell.attempt.reason} == {
        "none",
        *plan.config.defences,
    }
    assert plan.first.cells[0].name in [cell.name for cell in runs]  # and is run once
    (labels,) = [
        cell for cell in plan.second("frugal", ()).cells if cell.attempt.answers == "label"
    ]
    assert (labels.name, labels.job) == (plan.first.cells[2].name, plan.first.cells[2].job)
    for shape, kl in (("1,16,16", True), ("1,28,28", False)):  # auto is KL above 16 pixels a side
        cells = plan_of(["--teacher.shape", shape]).second("frugal", ("modelguard_s",)).cells
        assert ("kl" in {cell.attempt.answers for cell in cells}) == kl


def test_profiles_and_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    standard = plan_of(["--profile", "standard", "--pool", "procedural", "--budget", "5k"])
    assert standard.config.attackers == ("frugal", *KNOWING, "disguide", "dfme", "knockoff")
    assert standard.config.seeds == (0, 1, 2)
    assert {cell.budget for cell in standard.first.cells} == {5_000}
    knockoff = next(cell.job for cell in standard.first.cells if cell.row == "knockoff")
    assert knockoff.method_config.pool == "procedural"
    assert (standard.halves, knockoff.config.evaluation.dataset) == (None, "digits")
    beyond, _, missing = standard.not_run
    assert (beyond.why, missing.what) == (
        "--profile standard",
        "defence misinform:key_env=DFME_KEY",
    )
    assert "set the variable DFME_KEY" in missing.why
    assert len(standard.config.defences) == 5
    monkeypatch.setenv("DFME_KEY", os.urandom(8).hex())
    assert len(plan_of(["--profile", "standard"]).config.defences) == 6
    assert len(plan_of(["--profile", "full"]).config.seeds) == 5


@pytest.mark.parametrize(
    ("stated", "listed", "modes"),
    [
        ("probabilities", "", "probabilities probabilities:2 label"),
        ("logits", "", "logits probabilities:2 label"),
        ("probabilities:1", "", "probabilities:1 label"),
        ("probabilities:4", "label", "probabilities:4 label"),
        ("label", "", "label"),
        ("", "top_k:3,label", "top_k:3 label"),
    ],
)
def test_label_modes_begin_with_the_teachers_own(stated: str, listed: str, modes: str) -> None:
    words = [f"--teacher.label-mode={stated}"] * bool(stated) + [f"--label-modes={listed}"] * bool(
        listed
    )
    plan = plan_of([*words, "--defences", "none", "--like-images", "none"])
    assert (
        list(plan.config.label_modes) == modes.split() == [cell.mode for cell in plan.first.cells]
    )


def test_a_defence_of_a_profile_that_does_not_fit_is_left_out_and_a_stated_one_refused() -> None:
    plan = plan_of(["--teacher.label-mode", "probabilities:2"])
    assert "modelguard_w" not in plan.config.defences
    assert any("modelguard_w" in omission.what and omission.why for omission in plan.not_run)
    with pytest.raises(UserError, match="undoes the margin"):
        plan_of(["--teacher.label-mode", "probabilities:2", "--defences", "modelguard_w"])
    with pytest.raises(UserError, match="set the variable NO_KEY"):
        plan_of(["--defences", "misinform:key_env=NO_KEY"])
    labels = plan_of(["--teacher.label-mode", "label"])
    assert labels.second is None
    assert "no scores to defend" in labels.not_run[2].why


def test_behind_a_service_its_own_form_alone_and_the_rest_is_said() -> None:
    plan = plan_of(SERVICE)
    assert [cell.mode for cell in plan.first.cells] == ["probabilities"] * 2
    assert (plan.second, plan.watch, plan.config.jobs) == (None, (), 1)
    left_out = ["label mode probabilities:2", "label mode label", "defences", "detection"]
    assert [omission.what for omission in plan.not_run][1:5] == left_out


def test_an_attacker_with_images_like_yours_is_left_out_with_a_reason(here: Path) -> None:
    np.savez(
        "few.npz", images=np.random.default_rng(0).random((79, 8, 8)), labels=np.arange(79) % 10
    )
    for words, why in {
        "--evaluation.dataset few.npz": "half of the evaluation images are 39, and at least 40 are needed",
        "--evaluation.dataset none": "there are no evaluation images",
        "--evaluation.mean .5 --evaluation.std .5": "are normalised",
        "--like-images none": "--like-images none",
        "--attackers frugal": "--attackers names others",
    }.items():
        plan = plan_of([*words.split(), "--defences", "none"])
        assert [cell.row for cell in plan.first.cells] == ["frugal"] * 3
        assert not plan.first.cells[0].job.config.evaluation.dataset.endswith("@scored")
        (entry,) = [
            omission
            for omission in plan.not_run
            if omission.what == "somebody with images like yours"
        ]
        assert why in entry.why
    with pytest.raises(UserError, match=r"--attackers: expected --pool as well.*are 39"):
        plan_of(["--evaluation.dataset", "few.npz", "--attackers", "knockoff"])
    alone = plan_of(["--attackers", "knockoff"])
    assert {
        cell.budget for cell in (*alone.first.cells, *alone.second("knockoff", ["mad"]).cells)
    } == {179}


def test_a_detector_that_the_data_cannot_feed_is_left_out(here: Path) -> None:
    np.savez(
        "own.npz", images=np.random.default_rng(0).random((90, 8, 8)), labels=np.arange(90) % 10
    )
    plan = plan_of(["--evaluation.dataset", "own.npz"])
    assert (len(plan.watch), "mahalanobis" in plan.watch) == (7, False)
    (entry,) = [
        omission
        for omission in plan.not_run
        if omission.what == "detectors mahalanobis, sequential, sprt"
    ]
    assert "train_labels" in entry.why
    Path("a").mkdir()
    Path("a/audit.yaml").write_text(sealed(dump_yaml(plan.options)))
    again = plan_of(["--resume", "--out", "a"])
    assert (again.not_run, again.watch) == (plan.not_run, plan.watch)
    assert (plan.halves.scored, plan.held_back) == (45, 45)


def test_a_resumed_audit_is_the_one_that_was_begun(here: Path) -> None:
    words = "--budget 900 --seeds 3 --teacher.label-mode probabilities:4 --price-per-1000 2".split()
    words += ["--teacher.watch", "labels,pairs"]
    first = plan_of([*words, "--acceptable", "agreement=.9", "--student.lr", "0.3", "--out", "a"])
    Path("a").mkdir()
    Path("a/audit.yaml").write_text(sealed(dump_yaml(first.options)))
    again = plan_of(["--resume", "--out", "a"])
    assert [cell.job for cell in again.first.cells] == [cell.job for cell in first.first.cells]
    assert [cell.job.config.student.lr for cell in again.first.cells] == [0.3] * 6
    assert again.config.acceptable == ("agreement=.9",)
    assert (again.config.defences, again.label_mode) == (first.config.defences, "probabilities:4")
    assert (again.not_run, again.watch) == (first.not_run, ("labels", "pairs"))
    with pytest.raises(UserError, match="'a' exists"):
        plan_of(["--out", "a"])


@pytest.mark.parametrize(
    "section", ["student: {lr: 0.3, arch: cnn_small}", "schedule: {kind: constant}"]
)
def test_what_a_file_says_of_students_is_refused_where_recipes_would_not_heed_it(
    section: str, here: Path
) -> None:
    Path("a.yaml").write_text(f"{section}\nteacher: {{kind: torch}}\n")
    key = "student.lr" if "lr" in section else "schedule.kind"
    with pytest.raises(
        UserError, match=rf"^--{key}: expected this flag: attackers that are recipes"
    ) as caught:
        plan_of(["--config", "a.yaml"])
    assert "arch" not in str(caught.value)
    jobs = [
        cell.job.config
        for cell in plan_of(["--student.lr", "0.3", "--student.arch", "lenet5"]).first.cells
    ]
    assert {(job.student.lr, job.student.arch) for job in jobs} == {(0.3, "lenet5")}


def test_a_file_names_no_hosts(here: Path) -> None:
    Path("a.yaml").write_text("engine_options: [address=evil:1]\n")
    with pytest.raises(UserError, match="say --engine-options on the command line"):
        plan_of(["--config", "a.yaml"])


def test_its_help_lists_its_own_options_and_those_of_all_attacks() -> None:
    listed = [option.key for option in options([])]
    assert listed[: len(OWN)] == list(OWN)
    assert {"teacher.checkpoint", "evaluation.dataset", "student.arch"} <= set(listed)
    assert not {"seed", "teacher.defences", "method.name"} & set(listed)


def ladder_of(*words: str) -> AuditPlan:
    """With weights that are there; what they hold is read later."""
    Path("net.safetensors").touch()
    return plan_of(["--student.weights", "net.safetensors", "--student.arch", "resnet18", *words])


def test_public_weights_are_those_of_the_ladders_rows_alone(here: Path) -> None:
    Path("pictures").mkdir()
    for name in range(70):
        Path(f"pictures/{name}.png").touch()
    plan = ladder_of("--public-pool", "pictures", "--student.train", "head", "--out", "a")
    assert plan.config.attackers == ("frugal", "public", "public_pool", "public_like")
    jobs = {cell.row: cell.job for cell in plan.first.cells}
    students = {row: job.config.student for row, job in jobs.items()}
    assert {row: (student.weights, student.arch) for row, student in students.items()} == {
        "frugal": (None, "auto"),
        **dict.fromkeys(plan.config.attackers[1:], ("net.safetensors", "resnet18")),
    }
    assert (students["public"].train, students["frugal"].train) == ("head", "auto")
    pools = {row: getattr(job.method_config, "pool", None) for row, job in jobs.items()}
    assert (pools["public_pool"], pools["public_like"]) == ("pictures", "digits@like")
    budgets = {cell.row: cell.budget for cell in plan.first.cells}
    assert budgets == {"frugal": 3_000, "public": 3_000, "public_pool": 70, "public_like": 179}
    assert (plan.weights, plan.config.budget) == ("net.safetensors", 3_000)
    assert {cell.job.config.student.steps for cell in plan.first.cells if cell.row == "frugal"} == {
        2_000
    }
    Path("a").mkdir()
    Path("a/audit.yaml").write_text(sealed(dump_yaml(plan.options)))
    again = plan_of(["--resume", "--out", "a"])
    assert [cell.job for cell in again.first.cells] == [cell.job for cell in plan.first.cells]


def test_larger_profiles_have_whoever_starts_from_noise_as_well(here: Path) -> None:
    assert ladder_of("--profile", "standard").config.attackers == (
        "frugal",
        *KNOWING,
        "disguide",
        "dfme",
        "public",
        "knockoff",
        "public_like",
    )
    alone = ladder_of("--like-images", "none")
    assert alone.config.attackers == ("frugal", "public")
    assert "somebody with images like yours" in [part.what for part in alone.not_run]


def test_an_unknown_attacker_is_named_under_the_option_of_an_audit() -> None:
    with pytest.raises(UserError, match=r"^--attackers: expected a row, method or recipe"):
        plan_of(["--attackers", "frugal,nobody"])


def test_a_profile_names_those_who_know_the_model_only_while_they_are_not_tried() -> None:
    def names(*attackers: str) -> str:
        plan = plan_of(["--attackers", ",".join(attackers)])
        return next(part.what for part in plan.not_run if part.why == "--profile quick")

    assert names("frugal").startswith("attackers who know what the model is for, more defences")
    assert names("frugal", KNOWING[0]).startswith("other attackers who know")
    assert names("frugal", *KNOWING).startswith("more defences, seeds and steps, two sizes")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--attackers public_like", "--attackers: public_like: expected --student.weights as well"),
        ("--public-pool x", "--public-pool: expected the attacker public_pool, with weights"),
        ("--attackers public_pool", "--attackers: expected --public-pool as well"),
        ("--attackers frugal --student.weights wheel", "expected an attacker that has them"),
        ("--rate 60/fortnight", "--rate: expected images/TERM such as 60/min"),
        ("--student.weights wheel --student.train heads", "--student.train: expected one of auto"),
        ("--student.weights no.pt", "--student.weights: no.pt: no such file"),
        ("--student.weights wheel --student.arch resnet18", "--student.weights: wheel: holds timm"),
    ],
)
def test_what_the_ladder_lacks_is_said_before_anything_is_asked(words: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_of(words.split())
    assert message in str(caught.value)


def test_quick_stays_quick_on_large_images_and_says_what_it_leaves_out(here: Path) -> None:
    images = np.zeros((90, 3, 65, 65), np.uint8)
    images[:, 0, 0, 0] = np.arange(90)
    np.savez("large.npz", images=images, labels=np.arange(90) % 10)
    words = ["--evaluation.dataset", "large.npz", "--teacher.shape", "3,65,65"]
    plan = plan_of(words)
    steps = {cell.row: cell.job.config.student.steps for cell in plan.first.cells}
    assert steps == {"frugal": MAX_LARGE_STEPS, "knockoff": MAX_LARGE_STEPS}
    assert (plan.second, plan.config.transfer, plan.accounts) == (None, "false", FEW_ACCOUNTS)
    left_out = {part.what: part.why for part in plan.not_run}
    assert "name some by --defences" in left_out["defences"]
    assert left_out["somebody with weights that anybody can download"] == (
        "there are no --student.weights"
    )
    assert left_out["somebody with public pictures"] == "there is no --public-pool"
    more = plan_of([*words, "--transfer", "true", "--defences", "mad", "--student-steps", "700"])
    assert (more.config.transfer, more.config.defences) == ("true", ("mad",))
    assert {cell.job.config.student.steps for cell in more.first.cells} == {700}
    standard = plan_of([*words, "--profile", "standard"])
    assert (standard.config.transfer, standard.accounts) == ("auto", 20)


def test_a_pool_that_has_fewer_images_than_the_budget_ends_its_attacker_there(here: Path) -> None:
    images = np.zeros((70, 8, 8))
    np.savez("pool.npz", train_images=images, train_labels=np.zeros(70), images=images[:5])
    np.savez("other.npz", names=np.zeros(3))
    Path("empty.npz").touch()
    assert [images_in(f"{name}.npz") for name in ("pool", "other", "empty", "no")] == [
        70,
        None,
        None,
        None,
    ]
    assert [images_in(name) for name in ("digits", "procedural", None)] == [None] * 3
    cells = plan_of(["--pool", "pool.npz", "--defences", "none"]).first.cells
    assert {cell.row: cell.budget for cell in cells} == {"frugal": 3_000, "knockoff": 70}
