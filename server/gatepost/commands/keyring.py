"""`gatepost keyring`: make and rotate the secrets that sign what the server hands out."""

from pathlib import Path

import click

from gatepost.keyring import KeyRingError, create, rotate

FILE = click.Path(dir_okay=False, path_type=Path)
DEFAULT_FILE = "keyring.json"


@click.group()
def keyring() -> None:
    """Make and rotate the key ring, the file that `[keys] ring` names."""


@keyring.command()
@click.argument("path", type=FILE, default=DEFAULT_FILE)
def new(path: Path) -> None:
    """Write a new key ring to PATH (keyring.json), readable by its owner only."""
    try:
        key_id = create(path)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f'{path} holds the key {key_id}; set [keys] ring = "file:{path}".')


@keyring.command("rotate")
@click.argument("path", type=FILE, default=DEFAULT_FILE)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many older keys still verify what they signed.",
)
def rotate_(path: Path, keep: int) -> None:
    """
    Put a new key in front of PATH (keyring.json); older keys still verify.

    Running servers take it up at SIGHUP, or when they first meet what it signed.
    """
    try:
        key_id = rotate(path, keep=keep)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{path} signs with the key {key_id} now.")
