"""Runs that record their queries: what was sent, bit for bit, also if killed; nothing else changes."""

import shutil
from pathlib import Path

import pytest
import torch
from defended import DETECTORS, WEIGHTS
from processes import PROJECT, Bench, in_this_process
from small_runs import lasting
from torch import Tensor

import dfme
from dfme.data.recorded_queries import RecordedQueries
from dfme.spec import ImageSpec

OPTIONS = {
    "shape": (1, 8, 8),
    "num_classes": 10,
    "budget": 300,
    "method": "static",
    "progress": False,
}


class Asked:
    """A linear teacher that remembers its images and answers."""

    def __init__(self) -> None:
        self.images = list[Tensor]()
        self.answers = list[Tensor]()
        self._weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))

    def __call__(self, images: Tensor) -> Tensor:
        p_BK = (images.flatten(1) @ self._weight).softmax(1)
        self.images.append(images.clone())
        self.answers.append(p_BK)
        return p_BK


def test_a_record_has_every_query_as_it_was_sent_and_no_evaluation_image(tmp_path: Path) -> None:
    plain, asked = Asked(), Asked()
    kept = {"evaluation": {"dataset": "digits", "limit": 50}, **OPTIONS}
    without = dfme.extract(plain, out=tmp_path / "plain", **kept)
    run = dfme.extract(asked, out=tmp_path / "run", record_queries=True, **kept)
    record = RecordedQueries(tmp_path / "run" / "queries")
    assert len(record) == run.summary["spent"] == 300
    sent, answers = torch.cat(asked.images), torch.cat(asked.answers)
    assert len(sent) == 350, "the evaluation's are asked, too"
    assert torch.equal(record.images(0, 300), sent[50:])
    p_BK = answers[50:].double()
    torch.testing.assert_close(record.scores(0, 300), p_BK / p_BK.sum(1, keepdim=True))
    assert record.distances(0, 300) is None

    assert run.summary["config_hash"] == without.summary["config_hash"]
    assert "watch" not in run.summary
    students = [(tmp_path / name / "student.safetensors").read_bytes() for name in ("plain", "run")]
    assert students[0] == students[1], "a record changes no answer"
    assert not (tmp_path / "plain" / "queries").exists()


def test_levels_are_kept_as_their_numbers(tmp_path: Path) -> None:
    asked = Asked()
    dfme.extract(asked, out=tmp_path / "run", record_queries=True, levels=16, **OPTIONS)
    queries = tmp_path / "run" / "queries"
    record = RecordedQueries(queries)
    assert record.form.spec == ImageSpec((1, 8, 8), levels=16)
    assert (queries / "images.bin").stat().st_size == 300 * 64
    assert torch.equal(record.images(0, 300), torch.cat(asked.images))


WATCHED = (
    f"--teacher torch --teacher.checkpoint {PROJECT / WEIGHTS} --method.name static --budget 3000 "
    "--method.batch-size 64 --evaluation.dataset digits --evaluation.points 7 "
    f"--checkpoint-seconds 0.02 --teacher.watch {','.join(DETECTORS)} --teacher.benign digits "
    "--record-queries true"
)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_killed_run_leaves_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    flags = [word for word in whole.flags("run") if word not in ("--teacher.log", "run.log")]
    whole.here([*flags, *WATCHED.split()])
    first = [*flags, *WATCHED.split()]
    queries = killed.folder / "run" / "queries" / "images.bin"
    for images in (1, 700, 1_500, 2_400):
        process = killed.start(first if images == 1 else ["--resume", "--out", "run"])
        while process.poll() is None and (
            not queries.exists() or queries.stat().st_size < images * 256
        ):
            pass
        process.kill()
        process.wait()
    killed.here(["--resume", "--out", "run"])
    for name in ("form.json", "images.bin", "scores.f64", "distances.f64"):
        places = [bench.folder / "run" / "queries" / name for bench in (whole, killed)]
        assert places[0].read_bytes() == places[1].read_bytes(), name
    assert lasting(killed.folder / "run") == lasting(whole.folder / "run")


def test_a_resumed_run_goes_on_as_it_began(tmp_path: Path) -> None:
    for name, recorded in (("with", True), ("without", False)):
        out = tmp_path / name
        dfme.extract(Asked(), out=out, record_queries=recorded, **OPTIONS)
        larger = OPTIONS | {"budget": 500}
        dfme.extract(Asked(), out=out, record_queries=not recorded, resume=True, **larger)
        assert (out / "queries").exists() == recorded
    assert len(RecordedQueries(tmp_path / "with" / "queries")) == 500


def test_a_run_whose_record_is_gone_says_so(tmp_path: Path) -> None:
    words = ["--teacher.checkpoint", WEIGHTS, "--evaluation.dataset", "digits", "--budget", "300"]
    small = ["--method.name", "procedural", "--student.steps", "10", "--out", str(tmp_path / "run")]
    code, _, err = in_this_process([*words, *small, "--record-queries", "true"])
    assert code == 0, err
    shutil.rmtree(tmp_path / "run" / "queries")
    (tmp_path / "run" / "summary.json").unlink()
    again = ["--resume", "--out", str(tmp_path / "run")]
    code, _, err = in_this_process(again)
    assert code == 2
    expected = "queries: expected the queries that this run recorded, got no folder; restore it"
    assert expected in err.splitlines()[-1]


def test_queries_of_a_service_are_recorded_where_it_runs(tmp_path: Path) -> None:
    service = "extract --teacher v2 --teacher.url http://127.0.0.1:9 --teacher.model digits "
    service += "--teacher.shape 1,8,8 --teacher.num-classes 10 --teacher.authorised-by me "
    words = f"{service} --budget 100 --record-queries true --out {tmp_path / 'run'}".split()
    code, _, err = in_this_process(words)
    assert code == 2
    text = "--record-queries: a service's are recorded where it runs, by run.py serve --record"
    assert text in err
    assert not (tmp_path / "run").exists()
