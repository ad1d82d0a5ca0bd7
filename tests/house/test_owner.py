"""The rooms of teachers/: what an owner runs stands on what answers, and none on one another."""

from test_architecture import MODULES, circle, imported

OWNER = ("owner",)
"""The rooms of teachers/ that an owner runs."""
WRAPPING = "build"
"""The module of what answers that wraps a teacher in defences and a watch."""


def room_of(module: str) -> str:
    """The package of teachers/ or of teachers/owner/ that a module is in; a module of no package is
    its own room.
    """
    parts = module.split(".")[2:4]
    return ".".join(parts if parts[0] == "owner" else parts[:1])


def rooms() -> dict[str, set[str]]:
    """What each room imports of the others. Paths in the folder ``teachers`` and its link in dfme/
    are one module.
    """
    modules = [each for each in MODULES if each.startswith("dfme.teachers.")]
    graph: dict[str, set[str]] = {room_of(each): set() for each in modules}
    for each in modules:
        others = imported(MODULES[each]) & set(modules)
        graph[room_of(each)] |= {room_of(other) for other in others} - {room_of(each)}
    return graph


def test_no_rooms_of_teachers_import_one_another():
    graph = rooms()
    assert circle(graph) == []
    assert "remote" in graph["open_inference"], "the link hides no import"


def test_what_answers_does_not_import_what_an_owner_runs():
    importing = {
        room
        for room, others in rooms().items()
        if not room.startswith(OWNER) and any(other.startswith(OWNER) for other in others)
    }
    assert importing == {WRAPPING}
