"""An audit beside the one before: what can be told by seeds and images, what cannot be compared, and
who is told.
"""

import json
import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_histories import ATTACK, audited, beside, line
from audit_pages import judged
from audit_runs import JOB
from damage import refused

from dfme.audits.audit.ending import exit_code
from dfme.audits.audit.history import (
    AttackForm,
    ScoringImages,
    read_before,
    require_comparable,
)
from dfme.audits.audit.price_lines import attack_of
from dfme.audits.audit.result import Halves, audit_result, document
from dfme.config.sections import QueriesConfig
from dfme.config.settings import StudentConfig
from dfme.methods.configs import KnockoffConfig


@pytest.mark.parametrize(
    ("before", "now", "images", "change"),
    [
        # one seed: Newcombe's interval over images has to leave out 8 points. 75 and 60 of 100: 2.0
        # to 27.3; 85 and 60: 12.7 to 36.2
        (line([0.60]), line([0.75]), 100, "cannot be told"),
        (line([0.60]), line([0.85]), 100, "cheaper"),
        (line([0.85]), line([0.60]), 100, "dearer"),
        # the images tell, and the seeds do not: Welch's p is .12
        (line([0.50, 0.60, 0.70]), line([0.70, 0.75, 0.80]), 10_000, "cannot be told"),
        # Welch's p is below .01, but of 30 images nobody can tell
        (line([0.60, 0.61, 0.62]), line([0.70, 0.71, 0.72]), 30, "cannot be told"),
        (line([0.60, 0.61, 0.62]), line([0.70, 0.71, 0.72]), 1_000, "cheaper"),
        # ranges of queries of three seeds that do not overlap, and some that do
        (
            line([0.91] * 3, [900, 1000, 2000]),
            line([0.91] * 3, [500, 600, 899]),
            359,
            "cheaper",
        ),
        (
            line([0.91] * 3, [900, 1000, 2000]),
            line([0.91] * 3, [500, 600, 900]),
            359,
            "cannot be told",
        ),
        (
            line([0.91] * 3, [500, 600, 700]),
            line([0.91] * 3, [701, 900, 950]),
            359,
            "dearer",
        ),
        # they lie apart, by less than half of the first
        (
            line([0.91] * 3, [500, 600, 700]),
            line([0.91] * 3, [701, 800, 900]),
            359,
            "cannot be told",
        ),
        # of two seeds, or where one did not get there, queries tell nothing
        (line([0.91] * 2, [900, 1000]), line([0.91] * 2, [50, 60]), 359, "cannot be told"),
        (
            line([0.91] * 3, [900, 1000, None]),
            line([0.91] * 3, [50, 60, 70]),
            359,
            "cannot be told",
        ),
        # fewer queries, and a copy that agrees on less
        (
            line([0.99] * 3, [900, 1000, 2000]),
            line([0.91] * 3, [50, 60, 70]),
            1_000,
            "cannot be told",
        ),
    ],
)
def test_a_change_is_told_by_images_and_seeds(
    before: dict[str, Any], now: dict[str, Any], images: int, change: str
) -> None:
    result = beside(audited(now, images=images), audited(before, images=images))
    (told,) = result.lines
    assert told.change == change
    assert told.text.startswith(f"frugal, probabilities: {change}. The copy agrees on ")
    assert result.fails == (change == "cheaper")
    assert ("which knows nothing of other seeds" in " ".join(result.text)) == (told.seeds == 1)


def test_the_line_says_its_figures() -> None:
    (told,) = beside(audited(line([0.75]), images=100), audited(line([0.60]), images=100)).lines
    assert told.agreement == (pytest.approx(0.6), pytest.approx(0.75))
    # by hand, of Wilson's intervals .657 to .825 and .502 to .691
    assert told.difference.low == pytest.approx(0.15 - (0.0930**2 + 0.0906**2) ** 0.5, abs=2e-4)
    assert told.difference.high == pytest.approx(0.15 + (0.0745**2 + 0.0980**2) ** 0.5, abs=2e-4)
    assert told.text == (
        "frugal, probabilities: cannot be told. The copy agrees on 75.0%, before on 60.0% (95% interval "
        "of the difference over images +2.0 to +27.3 points; 1 seed)."
    )


def test_what_is_not_above_a_constant_answer_is_no_copy_that_became_cheaper() -> None:
    now, before = audited(line([0.7]), images=1_000), audited(line([0.5]), images=1_000)
    assert beside(now, before).fails
    now["games"]["constant"] = 0.69
    assert [told.change for told in beside(now, before).lines] == ["cannot be told"]


def test_only_own_answers_and_labels_fail() -> None:
    for mode, fails in (("probabilities", True), ("label", True), ("probabilities:2", False)):
        own = audited(line([0.9], mode=mode)), audited(line([0.5], mode=mode))
        result = beside(*own)
        assert ([told.change for told in result.lines], result.fails) == (["cheaper"], fails)
        whole = audit_result(own[0] | {"history": document(result)})
        assert exit_code(replace(whole, cells=[])) == (4 if fails else 0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"budget": 5_000}, "--budget (3,000 now, 5,000 before)"),
        ({"attack": ATTACK | {"student.steps": "1"}}, "--student.steps (400 now, 1 before)"),
        ({"attack": {"method.name": "frugal"}}, "--student.steps (400 now, the default before)"),
        ({"row": "other"}, "it has no finished attack in the audit before"),
    ],
)
def test_a_line_of_other_options_is_not_compared(changed: dict[str, Any], words: str) -> None:
    same = line([0.5], mode="label")
    result = beside(audited(line([0.9]), same), audited(line([0.5]) | changed, same))
    assert [(told.row, told.mode) for told in result.lines] == [("frugal", "label")]
    assert words in result.left_out[0].why
    counts = "0 became cheaper and 0 dearer, and for 1 no change can be told"
    assert f"{counts}; {len(result.left_out)} more could not be compared." in result.text[0]


def test_of_fewer_seeds_or_other_images_nothing_is_compared() -> None:
    result = beside(audited(line([0.9, None])), audited(line([0.5, 0.5])))
    assert result.left_out[0].why == "--seeds (1 seed now, 2 seeds before)"
    other = audited(line([0.5]))
    other["target"]["evaluation"]["sha256"] = "c" * 64
    result = beside(audited(line([0.9])), other)
    assert (result.lines, result.images) == ([], "other")
    assert result.left_out[0].why == "--evaluation.dataset (bbbbbbbbbbbb now, cccccccccccc before)"


def test_of_an_old_document_it_is_said_what_is_not_known() -> None:
    now = audited(line([0.9]))
    old = deepcopy(audited(line([0.5], attack={})))
    for part in (old["target"], old["target"]["evaluation"]):
        part.pop("files", part.pop("sha256", None))
    old["price"][0].pop("attack")
    old |= {"schema": "dfme.audit/1"}
    result = beside(now, old)
    assert (result.model, result.images) == ("not known", "not known")
    assert [told.change for told in result.lines] == ["cheaper"]
    text = " ".join(result.text)
    for words in (
        "Whether the model is the same as then is not known",
        "are the same is known by name and number alone",
        "Not both audits say their students' options; their profiles are the same",
    ):
        assert words in text
    old["options"]["profile"] = "full"
    assert beside(now, old).left_out[0].why == "--profile (standard now, full before)"
    old["options"]["profile"] = "standard"
    old["target"]["evaluation"]["images"] = 180
    assert beside(now, old).left_out[0].why == "evaluation images (359 now, 180 before)"


def test_releases_models_and_limits_are_said() -> None:
    now = audited(
        line([0.5]), verdicts=[judged("agreement", 0.4, False), judged("aitg", 0.9, True)]
    )
    before = audited(line([0.5]), verdicts=[judged("agreement", 0.4, True)])
    assert "Both audits are of the same model files." in beside(now, before).text
    before["target"]["files"] = {"checkpoint": "d" * 64}
    before["tool"]["dfme"] = "0.10.0"
    result = beside(now, before)
    assert (result.model, result.limits) == ("other", ["agreement=0.4"])
    assert (
        "(dfme 0.10.0, this one with 0.11.0, which may change figures by itself)"
        in (result.text[0])
    )
    assert "The model's files are not those of then." in result.text
    assert result.text[-1] == "Your limit agreement=0.4 held then, and fails now."


def test_another_form_of_own_answers_is_said() -> None:
    now, before = audited(line([0.5])), audited(line([0.5]))
    sentence = "Your model answers probabilities:2 now, and answered probabilities then."
    assert sentence not in beside(now, before).text
    now["target"]["label_mode"] = "probabilities:2"
    assert beside(now, before).text[-1] == sentence


FORM = AttackForm("standard", 3_000, 1, ATTACK)
PLACE = "frugal", "probabilities"
SCORED = ScoringImages("digits", 359, None, None)


@pytest.mark.parametrize(
    ("form", "scored", "words"),
    [
        (replace(FORM, budget=100), SCORED, "these differ: --budget (100 now, 3,000 before)"),
        (replace(FORM, seeds=2), SCORED, "--seeds (2 seeds now, 1 seed before)"),
        (replace(FORM, options={"student.lr": "1"}), SCORED, "--student.lr (1 now, the default"),
        (FORM, replace(SCORED, name="letters"), "--evaluation.dataset (letters now, digits"),
        (FORM, replace(SCORED, images=10), "evaluation images (10 now, 359 before)"),
    ],
)
def test_nothing_to_compare_is_refused_before_the_first_query_with_the_options(
    form: AttackForm, scored: ScoringImages, words: str
) -> None:
    content = audited(line([0.5]))
    content["target"]["evaluation"]["name"] = "folder/digits"
    before = audit_result(content)
    require_comparable({PLACE: FORM}, SCORED, before)
    refused(words, require_comparable, {PLACE: form}, scored, before)
    # one that can be compared is enough, where the images are the same
    if scored is SCORED:
        both = audit_result(audited(line([0.5]), line([0.5], mode="label")))
        own = replace(scored, name=both.target.evaluation.name)
        require_comparable({PLACE: form, ("frugal", "label"): FORM}, own, both)
    refused(
        "--attackers (b now, frugal", require_comparable, {("b", "label"): FORM}, SCORED, before
    )


def test_other_halves_of_the_same_images_are_other_images() -> None:
    content = audited(line([0.5]))
    content["halves"] = {"dataset": "digits", "held_back": 9, "scored": 9, "sha256": "e" * 64}
    before = audit_result(content)
    name = before.target.evaluation.name
    halves = Halves("digits", 9, 9, "f" * 64)
    words = "images held back (ffffffffffff now, eeeeeeeeeeee before)"
    refused(
        words, require_comparable, {PLACE: FORM}, ScoringImages(name, None, None, halves), before
    )


def test_the_audit_before_is_a_file_of_a_stranger(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(audited(line([0.5]))))
    out = tmp_path / "new"
    assert read_before(str(file), out) == read_before(str(tmp_path), out)
    refused("expected the audit before, got the one", read_before, str(file), tmp_path)
    refused("expected the audit.json of an audit before", read_before, str(tmp_path / "no"), out)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for strange in (tmp_path / "loop", tmp_path / "pipe", "\0"):
        refused("expected the audit.json of an audit before", read_before, str(strange), out)
    (tmp_path / "link").symlink_to(file)
    refused("got the one that is to be made", read_before, str(tmp_path / "link"), tmp_path)
    for text, words in {
        "[" * 100_000: "expected the schema dfme.audit/2 or dfme.audit/1, got None; make that",
        '{"schema": "dfme.audit/2"}': "expected all that dfme.audit/2 holds, got tool: Field",
        '{"schema": "\\u001b[2J"}': "got '\\x1b[2J'; make that audit again",
    }.items():
        file.write_text(text)
        refused(words, read_before, str(file), out)
    unfinished = audited(line([0.5]))
    unfinished["made"]["finished"] = False
    file.write_text(json.dumps(unfinished))
    refused("expected a finished audit", read_before, str(file), out)


def test_an_attack_is_known_by_the_options_that_are_not_the_defaults() -> None:
    """Not by where its files lie, and not by what a later release adds with a default."""
    assert attack_of(JOB) == {"method.name": "procedural"}
    for folder in ("models", "elsewhere"):
        student = StudentConfig(lr=0.2, weights=f"{folder}/net.safetensors")
        job = replace(
            JOB,
            config=replace(JOB.config, student=student),
            queries=QueriesConfig(domain="text"),
            method_config=KnockoffConfig(pool=f"{folder}/pictures"),
        )
        assert attack_of(job) == {
            "method.name": "procedural",
            "method.pool": "pictures",
            "queries.domain": "text",
            "student.lr": "0.2",
            "student.weights": "net.safetensors",
        }
