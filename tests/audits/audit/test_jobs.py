"""The jobs for CI servers in docs/audit.md: they state limits, keep what passed, and use it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from audit_pages import sample
from processes import PROJECT

from dfme.audits.audit.exports import write_all
from dfme.audits.audit.options import AuditConfig, budget_of, limits
from dfme.audits.audit.result import audit_result

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("undrawn")]


def shell(command: str, keep: str, folder: Path, before: bool) -> str:
    """What a job's shell makes of the command, in a folder with an audit before, or without."""
    (folder / "audit").mkdir(exist_ok=True)
    (folder / "audit/audit.json").write_text("{}")
    assert (folder / "before/audit.json").exists() == before
    script = f"set -e\n{command.replace('python ', 'echo ', 1)}\n{keep}"
    return subprocess.run(
        ["sh", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_the_jobs_of_the_page_say_limits_that_can_fail_and_upload_what_is_written(
    tmp_path: Path,
) -> None:
    page = (PROJECT / "docs/audit.md").read_text()
    github, gitlab = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    *_, command, keep = gitlab["extraction"]["script"]
    steps = [step.get("run") for step in github["jobs"]["extraction"]["steps"]]
    assert steps.index(keep) == steps.index(command) + 1, "what passed is the audit before"
    (stated,) = re.findall(r"--acceptable (\S+)", command)
    assert limits(stated.split(","), budget_of(AuditConfig()))
    (cached,) = gitlab["extraction"]["cache"]["paths"]
    assert cached in [
        f"{step['with']['path']}/"
        for step in github["jobs"]["extraction"]["steps"]
        if "cache" in step.get("uses", "")
    ]
    for before in (False, True):
        told = shell(command, keep, tmp_path, before)
        assert ("--against before/audit.json" in told) == before
        assert (tmp_path / "before/audit.json").is_file()
    kept = gitlab["extraction"]["artifacts"]
    written = {f"audit/{path.name}" for path in write_all(audit_result(sample()), tmp_path)}
    assert {kept["reports"]["junit"], *kept["paths"]} == written | {"audit/audit.json"}
