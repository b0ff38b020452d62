"""The command line in tests."""

from click.testing import CliRunner

from somf.cli import main


def somf(*arguments, group=main):
    """Run a command as from a shell; stdout and stderr are kept apart."""
    try:
        runner = CliRunner(mix_stderr=False)
    except TypeError:  # click 8.2 and later always keep them apart
        runner = CliRunner()
    return runner.invoke(group, [str(argument) for argument in arguments])
