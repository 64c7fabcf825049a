"""What is said of an actor that died."""

from types import SimpleNamespace

import pytest

from windtunnel.runtime.executors.ray_cluster import _ActorHandle

SAID = """The actor died unexpectedly before finishing this task.
\tclass_name: Actor
\tpid: 4711
The actor is dead because its worker process has died. Worker exit type: {} Worker exit detail: 1 worker(s) were killed."""


class RayError(Exception):
    pass


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            SAID.format("NODE_OUT_OF_MEMORY"),
            "The actor died unexpectedly before finishing this task. NODE_OUT_OF_MEMORY",
        ),
        ("The node is   gone.\nand more", "The node is gone."),
        ("", "RayError"),
    ],
)
def test_an_actor_that_died_is_told_with_how_it_ended_and_nothing_of_one_run(said, told):
    def get(_):
        raise RayError(said)

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError, RayTaskError=ZeroDivisionError))
    news = _ActorHandle(ray, None).read_event()
    assert (news.kind, news.content) == ("died", told)
