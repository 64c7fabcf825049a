import click
import pytest

from windtunnel.cli.main import COMMANDS, LazyGroup


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_list_is_found(name):
    command = LazyGroup("windtunnel").get_command(click.Context(click.Command("windtunnel")), name)
    assert isinstance(command, click.Command)
    assert command.help
